"""Models for models.py: name -> function that makes (model, inputs, loss, flags of memc).

Losses: `classes` and `tokens` are cross-entropy with the classes second or last, `mse` and `own` (the model's output
is the loss). Sizes are reduced; dropout is zero, since no two runtimes draw the same.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

MODELS = {}


def add(name, make, args, kind="mse", flags=()):
    MODELS[name] = lambda: (make(), args(), kind, list(flags))


def images(n=2, c=3, size=64):
    return lambda: (torch.randn(n, c, size, size),)


def still(model):
    """Without dropout and random depth."""
    for module in model.modules():
        for name in ("p", "drop_prob", "dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


# torchvision
for net in ("alexnet resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_1 "
            "googlenet inception_v3 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x0_5 mnasnet0_5 "
            "efficientnet_b0 efficientnet_v2_s regnet_x_400mf regnet_y_400mf convnext_tiny vit_b_32 swin_t swin_v2_t "
            "maxvit_t").split():
    def vision(net=net):
        import torchvision
        more = {"aux_logits": False} if net in ("googlenet", "inception_v3") else {}
        if net == "vit_b_32":
            more = {"image_size": 64}
        if net == "maxvit_t":
            more = {"input_size": (224, 224)}
        return still(getattr(torchvision.models, net)(num_classes=10, **more))
    # The older exporter takes adaptive pooling only where it divides.
    size = {"inception_v3": 96, "maxvit_t": 224, "alexnet": 224}.get(net, 64)
    add(net, vision, images(2, size=size), "classes")


class Output(nn.Module):
    """One output of a model."""

    def __init__(self, model, pick):
        super().__init__()
        self.model, self.pick = model, pick

    def forward(self, *args):
        return self.pick(self.model, *args)


def segmentation(name):
    def make():
        import torchvision
        make = getattr(torchvision.models.segmentation, name)
        return still(Output(make(weights=None, weights_backbone=None, num_classes=5), lambda m, x: m(x)["out"]))
    return make


for net in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"):
    add(net, segmentation(net), images(2, size=64), "classes")


def backbone():
    import torchvision
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    norm = torchvision.ops.FrozenBatchNorm2d
    body = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=norm, trainable_layers=3)
    return Output(body, lambda m, x: m(x)["0"])


add("resnet18_fpn_frozen_bn", backbone, images(1))

# transformers
SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
             max_position_embeddings=40)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def tokens(n=2, length=16, vocabulary=64, low=2):
    return lambda: (torch.randint(low, vocabulary, (n, length)), torch.ones(n, length, dtype=torch.long))


def hugging(name, config, sizes, pick=None, kind="tokens", args=tokens()):
    def make():
        import transformers
        model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
        return still(Output(model, pick or (lambda m, i, a: m(input_ids=i, attention_mask=a).logits)))
    add(f"hf_{name}", make, args, kind)


def cached(m, i, a):
    return m(input_ids=i, attention_mask=a, use_cache=False).logits


for name in "Bert Roberta Electra MPNet XLMRoberta Camembert ConvBert RoFormer Nystromformer MegatronBert".split():
    hugging(f"{name}ForMaskedLM", f"{name}Config", SMALL | NO_DROPOUT)
hugging("AlbertForMaskedLM", "AlbertConfig", SMALL | NO_DROPOUT | {"embedding_size": 16})
hugging("DistilBertForMaskedLM", "DistilBertConfig",
        dict(vocab_size=64, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=40, dropout=0.0))
hugging("DebertaV2ForMaskedLM", "DebertaV2Config", SMALL | NO_DROPOUT | {"relative_attention": True})
hugging("BertForSequenceClassification", "BertConfig", SMALL | NO_DROPOUT | {"num_labels": 4}, kind="classes")
hugging("BertForTokenClassification", "BertConfig", SMALL | NO_DROPOUT | {"num_labels": 4})
hugging("ModernBertForMaskedLM", "ModernBertConfig",
        SMALL | dict(pad_token_id=0, bos_token_id=1, eos_token_id=1, cls_token_id=1, sep_token_id=1))
hugging("FNetForMaskedLM", "FNetConfig", SMALL | {"hidden_dropout_prob": 0.0},
        lambda m, i, a: m(input_ids=i).logits)
hugging("SqueezeBertForMaskedLM", "SqueezeBertConfig", SMALL | NO_DROPOUT | {"embedding_size": 32})
hugging("FunnelForMaskedLM", "FunnelConfig",
        dict(vocab_size=64, d_model=32, n_head=2, d_head=16, d_inner=64, block_sizes=[1, 1], hidden_dropout=0.0,
             attention_dropout=0.0, activation_dropout=0.0, num_decoder_layers=1))
hugging("XLNetLMHeadModel", "XLNetConfig", dict(vocab_size=64, d_model=32, n_layer=2, n_head=2, d_inner=64, dropout=0.0))
ROTARY = dict(SMALL, num_key_value_heads=1)
for name in "Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Olmo Olmo2 Phi3 Granite Cohere StableLm Starcoder2 Glm SmolLM3".split():
    more = {"head_dim": 16} if name in ("Qwen3", "Gemma", "Gemma2", "Glm") else {}
    more |= {"pad_token_id": 0} if name in ("Phi3", "Glm", "SmolLM3") else {}
    hugging(f"{name}ForCausalLM", f"{name}Config", ROTARY | more, cached)
hugging("PhiForCausalLM", "PhiConfig", SMALL | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}, cached)
hugging("FalconForCausalLM", "FalconConfig", dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2),
        cached)
hugging("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, cached)
hugging("MptForCausalLM", "MptConfig", dict(vocab_size=64, d_model=32, n_layers=2, n_heads=2, max_seq_len=40), cached)
hugging("BloomForCausalLM", "BloomConfig", dict(vocab_size=64, hidden_size=32, n_layer=2, n_head=2), cached)
GPT = dict(vocab_size=64, n_positions=40, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
for name in ("GPT2LMHeadModel GPT2Config", "GPTJForCausalLM GPTJConfig", "CodeGenForCausalLM CodeGenConfig",
             "GPTBigCodeForCausalLM GPTBigCodeConfig"):
    hugging(*name.split(), GPT | ({"rotary_dim": 8} if "J" in name or "Code" in name else {}), cached)
hugging("GPTNeoForCausalLM", "GPTNeoConfig",
        dict(vocab_size=64, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_position_embeddings=40,
             attention_types=[[["global", "local"], 1]], embed_dropout=0.0, attention_dropout=0.0), cached)
hugging("OPTForCausalLM", "OPTConfig",
        dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
             max_position_embeddings=40, dropout=0.0, word_embed_proj_dim=32), cached)
hugging("MixtralForCausalLM", "MixtralConfig", ROTARY | dict(num_local_experts=4, num_experts_per_tok=2), cached)
hugging("MambaForCausalLM", "MambaConfig", dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8),
        lambda m, i, a: m(input_ids=i, use_cache=False).logits)
hugging("RwkvForCausalLM", "RwkvConfig", dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, context_length=32),
        lambda m, i, a: m(input_ids=i, use_cache=False).logits)


def both(m, i, a):
    return m(input_ids=i, attention_mask=a, decoder_input_ids=i, use_cache=False).logits


hugging("T5ForConditionalGeneration", "T5Config",
        dict(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0), both)
for name in "Bart MBart Pegasus Marian Blenderbot".split():
    kind = {"Marian": "MarianMTModel"}.get(name, f"{name}ForConditionalGeneration")
    hugging(kind, f"{name}Config",
            dict(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                 decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=40, dropout=0.0,
                 pad_token_id=0, decoder_start_token_id=1), both)


def pixels(m, x):
    return m(pixel_values=x).logits


PATCHES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32,
               patch_size=8, num_labels=10)
for name in "ViT DeiT Beit Dinov2".split():
    hugging(f"{name}ForImageClassification", f"{name}Config", PATCHES | NO_DROPOUT, pixels, "classes", images(2, size=32))
hugging("SwinForImageClassification", "SwinConfig",
        dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=10,
             drop_path_rate=0.0), pixels, "classes", images(2, size=32))
hugging("ConvNextForImageClassification", "ConvNextConfig",
        dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_labels=10), pixels, "classes", images(2, size=64))
hugging("SegformerForImageClassification", "SegformerConfig",
        dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], decoder_hidden_size=16, num_labels=10, drop_path_rate=0.0,
             **NO_DROPOUT), pixels, "classes", images(2, size=64))
hugging("ResNetForImageClassification", "ResNetConfig",
        dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10), pixels, "classes", images(2, size=64))
hugging("MobileViTForImageClassification", "MobileViTConfig",
        dict(hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 16, 24, 32], num_labels=10, image_size=64,
             hidden_dropout_prob=0.0, classifier_dropout_prob=0.0), pixels, "classes", images(2, size=64))
hugging("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config",
        dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, conv_dim=[16, 16],
             conv_kernel=[10, 3], conv_stride=[5, 2], num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
             hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0,
             final_dropout=0.0, apply_spec_augment=False, num_labels=4, classifier_proj_size=16),
        lambda m, x: m(input_values=x).logits, "classes", lambda: (torch.randn(2, 800),))
hugging("WhisperForConditionalGeneration", "WhisperConfig",
        dict(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
             decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
             max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1, dropout=0.0,
             begin_suppress_tokens=None, suppress_tokens=None),
        lambda m, x, i: m(input_features=x, decoder_input_ids=i, use_cache=False).logits, "tokens",
        lambda: (torch.randn(2, 8, 32), torch.randint(0, 64, (2, 10))))

# timm
for net in ("resnet26 mixer_s32_224 gmlp_s16_224 convmixer_768_32 edgenext_xx_small efficientvit_b0 fastvit_t8 "
            "ghostnet_050 hardcorenas_a lcnet_050 levit_128s mobileone_s0 nf_regnet_b0 poolformer_s12 pvt_v2_b0 "
            "repvgg_a0 resmlp_12_224 rexnet_100 tinynet_e tiny_vit_5m_224 xcit_nano_12_p16_224 cait_xxs24_224 "
            "eca_resnet33ts halonet26t sebotnet33ts_256 visformer_tiny").split():
    def timm_model(net=net):
        import timm
        return still(timm.create_model(net, pretrained=False, num_classes=10))
    size = 256 if net in ("sebotnet33ts_256",) else 224 if "224" in net or net in ("levit_128s", "visformer_tiny") else 96
    # PyTorch's gradient of batch normalisation is wrong for one image whose channels come last, as in xcit. Of two
    # images rexnet normalises two values a channel, whose gradient is rounding alone.
    few = {"xcit_nano_12_p16_224": 2, "levit_128s": 2, "rexnet_100": 8}.get(net, 1 if size > 100 else 2)
    add(f"timm_{net}", timm_model, images(few, size=size), "classes")


# Written by hand, as people write them
class Gpt(nn.Module):
    """nanoGPT with a mask in a buffer and tied embeddings."""

    def __init__(self, dim=32, heads=2, length=16, words=64):
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(dim) for _ in range(3))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.head = nn.Linear(dim, words, bias=False)
        self.wte.weight = self.head.weight
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, ids):
        b, t = ids.shape
        x = self.wte(ids) + self.wpe(torch.arange(t))
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(x.shape[-1], 2))
        a = (q @ k.transpose(-2, -1)) / q.shape[-1] ** 0.5
        a = a.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, -1))
        return self.head(self.n3(x + self.down(F.gelu(self.up(self.n2(x))))))


add("nanogpt_tied", Gpt, lambda: (torch.randint(0, 64, (2, 16)),), "tokens")


class Recurrent(nn.Module):
    def __init__(self, kind, **more):
        super().__init__()
        self.e = nn.Embedding(64, 16)
        self.r = kind(16, 24, batch_first=True, **more)
        self.l = nn.Linear(24 * (2 if more.get("bidirectional") else 1), 64)

    def forward(self, ids):
        return self.l(self.r(self.e(ids))[0])


for name, kind, more in (("lstm", nn.LSTM, {}), ("lstm_two", nn.LSTM, {"num_layers": 2}), ("gru", nn.GRU, {}),
                         ("rnn", nn.RNN, {}), ("bilstm", nn.LSTM, {"bidirectional": True})):
    add(f"{name}_lm", lambda kind=kind, more=more: Recurrent(kind, **more), lambda: (torch.randint(0, 64, (2, 9)),), "tokens")


class Unet(nn.Module):
    def __init__(self, up, norm=nn.BatchNorm2d):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), norm(o), nn.ReLU())
        self.a, self.b, self.c, self.out = block(3, 8), block(8, 16), block(24, 8), nn.Conv2d(8, 4, 1)
        self.up = up()

    def forward(self, x):
        a = self.a(x)
        return self.out(self.c(torch.cat([a, self.up(self.b(F.max_pool2d(a, 2)))], 1)))


add("unet_interpolate", lambda: Unet(lambda: nn.Upsample(scale_factor=2)), images(2, size=16), "classes")
add("unet_bilinear", lambda: Unet(lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
    images(2, size=16), "classes")
add("unet_transposed", lambda: Unet(lambda: nn.ConvTranspose2d(16, 16, 2, 2)), images(2, size=16), "classes")
add("unet_groupnorm", lambda: Unet(lambda: nn.Upsample(scale_factor=2), lambda c: nn.GroupNorm(2, c)), images(2, size=16),
    "classes")


def simple(name, forward, parts, args, kind="mse"):
    """A model of some modules and parameters and a forward function of itself and the inputs."""

    class Simple(nn.Module):
        def __init__(self):
            super().__init__()
            for key, part in parts().items():
                (self.register_buffer if type(part) is torch.Tensor else setattr)(*((key, part) if type(part) is
                                                                                    torch.Tensor else (self, key, part)))

        def forward(self, *inputs):
            return forward(self, *inputs)
    add(name, Simple, args, kind)


R = torch.randn
P = nn.Parameter
lin = nn.Linear
simple("logistic", lambda s, x: s.l(x), lambda: {"l": lin(8, 3)}, lambda: (R(6, 8),), "classes")
simple("conv3d", lambda s, x: s.d(F.max_pool3d(F.relu(s.n(s.c(x))), 2)),
       lambda: {"c": nn.Conv3d(2, 4, 3, padding=1), "n": nn.BatchNorm3d(4), "d": nn.ConvTranspose3d(4, 2, 2, 2)},
       lambda: (R(2, 2, 4, 8, 8),))
simple("trilinear", lambda s, x: F.interpolate(s.c(x), scale_factor=2, mode="trilinear"), lambda: {"c": nn.Conv3d(1, 2, 3)},
       lambda: (R(1, 1, 5, 5, 5),))
simple("einsum_attention", lambda s, x: torch.einsum("bhij,bjhd->bihd", torch.einsum("bihd,bjhd->bhij", s.q(x).view(
    2, 5, 2, 4), s.k(x).view(2, 5, 2, 4)).softmax(-1), x.view(2, 5, 2, 4)), lambda: {"q": lin(8, 8), "k": lin(8, 8)},
    lambda: (R(2, 5, 8),))
simple("moe_top2", lambda s, x: (lambda p: (torch.einsum("bd,edf->bef", x, s.w).gather(1, p[1][..., None].expand(-1, -1, 8)) *
                                            p[0][..., None]).sum(1))(torch.topk(s.g(x).softmax(-1), 2)),
       lambda: {"g": lin(8, 4), "w": P(R(4, 8, 8) * 0.3)}, lambda: (R(6, 8),))
simple("sorted_features", lambda s, x: torch.sort(s.l(x), descending=True)[0], lambda: {"l": lin(8, 8)}, lambda: (R(3, 8),))
simple("stn", lambda s, x: s.c(F.grid_sample(x, F.affine_grid(s.t(x.flatten(1)).view(-1, 2, 3) * 0.1 + s.eye, x.shape,
                                                               align_corners=False), align_corners=False)),
       lambda: {"t": lin(192, 6), "c": nn.Conv2d(3, 2, 3), "eye": torch.tensor([[1., 0, 0], [0, 1, 0]])},
       lambda: (R(2, 3, 8, 8),))
simple("fourier_operator", lambda s, x: torch.fft.irfft(torch.fft.rfft(s.l(x)) * torch.complex(s.r, s.i), n=8),
       lambda: {"l": lin(8, 8), "r": P(R(5)), "i": P(R(5))}, lambda: (R(2, 8),))
simple("arcface", lambda s, x: torch.cos(torch.acos((F.normalize(x) @ F.normalize(s.w).T).clamp(-0.99, 0.99)) + 0.2) * 4,
       lambda: {"w": P(R(5, 8))}, lambda: (R(4, 8),), "classes")
simple("fold_unfold", lambda s, x: F.fold(F.unfold(s.c(x), 3, padding=1), (6, 6), 3, padding=1) * 0.1,
       lambda: {"c": nn.Conv2d(2, 2, 3, padding=1)}, lambda: (R(1, 2, 6, 6),))
simple("graph_scatter", lambda s, x, e: s.b(torch.zeros(5, 8).index_add(0, e[1], F.relu(s.a(x))[e[0]])),
       lambda: {"a": lin(4, 8), "b": lin(8, 3)}, lambda: (R(5, 4), torch.randint(0, 5, (2, 12))), "classes")
simple("graph_max", lambda s, x, e: s.b(torch.zeros(5, 8).scatter_reduce(
    0, e[1][:, None].expand(-1, 8), F.relu(s.a(x))[e[0]], "amax")), lambda: {"a": lin(4, 8), "b": lin(8, 3)},
    lambda: (R(5, 4), torch.randint(0, 5, (2, 12))), "classes")
simple("embedding_bag", lambda s, x: s.l(s.e(x)), lambda: {"e": nn.EmbeddingBag(20, 8, mode="mean"), "l": lin(8, 3)},
       lambda: (torch.randint(0, 20, (4, 5)),), "classes")
simple("padded_embedding", lambda s, x: s.l(s.e(x)).mean(1), lambda: {"e": nn.Embedding(10, 4, padding_idx=0),
                                                                       "l": lin(4, 3)},
       lambda: (torch.randint(0, 10, (3, 5)),), "classes")
simple("rope_buffer", lambda s, x: s.l(torch.cat([x * s.f.cos(), x * s.f.sin()], -1)),
       lambda: {"l": lin(16, 3), "f": torch.arange(8.) / 8}, lambda: (R(4, 8),), "classes")
simple("clip_scale", lambda s, a, b: F.cross_entropy(s.scale.exp() * F.normalize(s.a(a)) @ F.normalize(s.b(b)).T,
                                                      torch.arange(4)),
       lambda: {"a": lin(8, 6), "b": lin(8, 6), "scale": P(torch.tensor(1.0))}, lambda: (R(4, 8), R(4, 8)), "own")
simple("vqvae_straight_through", lambda s, x: (lambda z: (lambda c: s.d(z + (c - z).detach()) .pow(2).mean() + F.mse_loss(
    c, z.detach()))(s.codes[(z[:, None] - s.codes[None]).pow(2).sum(-1).argmin(1)]))(s.e(x)),
    lambda: {"e": lin(8, 4), "d": lin(4, 8), "codes": P(R(6, 4))}, lambda: (R(5, 8),), "own")
simple("byol", lambda s, a, b: -F.cosine_similarity(s.p(s.f(a)), s.f(b).detach()).mean(), lambda: {"f": lin(8, 6),
                                                                                                   "p": lin(6, 6)},
       lambda: (R(5, 8), R(5, 8)), "own")
simple("siren", lambda s, x: s.b(torch.sin(30 * s.a(x))), lambda: {"a": lin(2, 16), "b": lin(16, 1)}, lambda: (R(9, 2),))
simple("vae", lambda s, x, n: (lambda h: (lambda m, v: F.mse_loss(s.d(m + n * (0.5 * v).exp()), x) - 0.01 * (
    1 + v - m * m - v.exp()).mean())(*h.chunk(2, 1)))(s.e(x)), lambda: {"e": lin(8, 6), "d": lin(3, 8)},
    lambda: (R(5, 8), R(5, 3)), "own")
simple("weight_norm", lambda s, x: s.c(x), lambda: {"c": nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3))},
       lambda: (R(2, 3, 9),))
simple("wavenet", lambda s, x: s.o(torch.tanh(s.a(x)) * torch.sigmoid(s.b(x))),
       lambda: {"a": nn.Conv1d(3, 6, 2, dilation=2), "b": nn.Conv1d(3, 6, 2, dilation=2), "o": nn.Conv1d(6, 3, 1)},
       lambda: (R(2, 3, 12),))
simple("instance_reflect", lambda s, x: s.c(F.pad(s.n(x), (1, 1, 1, 1), mode="reflect")),
       lambda: {"n": nn.InstanceNorm2d(3, affine=True), "c": nn.Conv2d(3, 2, 3)}, lambda: (R(2, 3, 6, 6),))
simple("local_response", lambda s, x: F.local_response_norm(s.c(x), 3), lambda: {"c": nn.Conv2d(3, 4, 3)},
       lambda: (R(2, 3, 8, 8),))
simple("pixel_shuffle", lambda s, x: F.pixel_shuffle(s.c(x), 2), lambda: {"c": nn.Conv2d(3, 8, 3)}, lambda: (R(2, 3, 8, 8),))
simple("frozen_half", lambda s, x: s.b(F.relu(s.a(x))), lambda: {"a": lin(8, 8).requires_grad_(False), "b": lin(8, 3)},
       lambda: (R(4, 8),), "classes")
simple("frozen_batchnorm", lambda s, x: s.b(s.n(s.a(x)).mean((2, 3))),
       lambda: {"a": nn.Conv2d(3, 4, 3), "n": nn.BatchNorm2d(4).requires_grad_(False), "b": lin(4, 3)},
       lambda: (R(4, 3, 8, 8),), "classes")
simple("dueling_dqn", lambda s, x, a, r: F.smooth_l1_loss((lambda h: (s.v(h) + s.a(h) - s.a(h).mean(1, keepdim=True)).gather(
    1, a))(F.relu(s.f(x))), r), lambda: {"f": lin(6, 16), "v": lin(16, 1), "a": lin(16, 4)},
    lambda: (R(5, 6), torch.randint(0, 4, (5, 1)), R(5, 1)), "own")
simple("ppo", lambda s, x, a, old, adv: (lambda r: -torch.min(r * adv, r.clamp(0.8, 1.2) * adv).mean())(
    (s.f(x).log_softmax(-1).gather(1, a)[:, 0] - old).exp()), lambda: {"f": lin(6, 4)},
    lambda: (R(5, 6), torch.randint(0, 4, (5, 1)), R(5) * 0.1, R(5)), "own")
simple("crf_forward", lambda s, x: (lambda f: -torch.logsumexp(torch.stack([torch.logsumexp(
    f[:, i - 1, :, None] + s.t + f[:, i, None], 1) for i in range(1, 4)]).sum(0), 1).mean() * -1)(s.l(x)),
    lambda: {"l": lin(6, 4), "t": P(R(4, 4))}, lambda: (R(2, 4, 6),), "own")
simple("mlp_mixer", lambda s, x: s.h((lambda y: y + s.c(y))(x + s.t(x.transpose(1, 2)).transpose(1, 2)).mean(1)),
       lambda: {"t": lin(6, 6), "c": lin(8, 8), "h": lin(8, 3)}, lambda: (R(3, 6, 8),), "classes")
simple("transformer_encoder", lambda s, x: s.e(x).mean(1),
       lambda: {"e": nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)},
       lambda: (R(2, 5, 8),), "classes")
simple("linear_attention", lambda s, x: (lambda q, k, v: torch.einsum("btd,btde->bte", q, torch.cumsum(
    k[..., None] * v[..., None, :], 1)))(*s.qkv(x).chunk(3, -1)), lambda: {"qkv": lin(6, 12)}, lambda: (R(2, 5, 6),))
simple("runge_kutta", lambda s, x: (lambda f: (lambda k1: (lambda k2: x + 0.1 * f(x + 0.05 * k2))(f(x + 0.05 * k1)))(f(x)))(
    lambda y: torch.tanh(s.l(y))), lambda: {"l": lin(4, 4)}, lambda: (R(3, 4),))
simple("triplet", lambda s, a, p, n: F.relu(1 + (s.l(a) - s.l(p)).norm(dim=1) - (s.l(a) - s.l(n)).norm(dim=1)).mean(),
       lambda: {"l": lin(6, 4)}, lambda: (R(4, 6), R(4, 6), R(4, 6)), "own")
simple("depthwise", lambda s, x: s.p(F.hardswish(s.d(x))),
       lambda: {"d": nn.Conv2d(4, 4, 3, groups=4, padding=1), "p": nn.Conv2d(4, 3, 1)}, lambda: (R(2, 4, 6, 6),))
simple("nerf", lambda s, x: s.l(torch.cat([f(x * 2 ** i) for i in range(3) for f in (torch.sin, torch.cos)], -1)),
       lambda: {"l": lin(18, 4)}, lambda: (R(5, 3),))
simple("deepset_masked", lambda s, x: (s.l(x).masked_fill(x.sum(-1, keepdim=True) > 1, 0.0)).sum(1), lambda: {"l": lin(4, 3)},
       lambda: (R(3, 6, 4),), "classes")


class Lora(nn.Module):
    """A linear layer that stays, and the product of two small matrices that learns."""

    def __init__(self, inner, rank=2, scale=2.0):
        super().__init__()
        self.inner, self.scale = inner.requires_grad_(False), scale
        self.down, self.up = nn.Linear(inner.in_features, rank, bias=False), nn.Linear(rank, inner.out_features, bias=False)

    def forward(self, x):
        return self.inner(x) + self.scale * self.up(self.down(x))


def lora():
    model = Gpt()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.qkv, model.proj = Lora(model.qkv), Lora(model.proj)
    return model


add("gpt_lora", lora, lambda: (torch.randint(0, 64, (2, 16)),), "tokens")


class Dlrm(nn.Module):
    """Features of two kinds, and the products of every pair of their vectors."""

    def __init__(self, rows=(30, 50, 20), dim=8):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, dim), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="sum") for n in rows)
        pairs = (len(rows) + 1) * len(rows) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, *bags):
        x = self.bottom(dense)
        vectors = torch.stack([x, *[table(bag) for table, bag in zip(self.tables, bags)]], 1)
        products = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
        return self.top(torch.cat([x, products[:, row, column]], 1))[:, 0]


add("dlrm", Dlrm, lambda: (torch.randn(4, 6), *[torch.randint(0, 20, (4, 3)) for _ in range(3)]))


def upward(i, o, stride=2, padding=1):
    return nn.Sequential(nn.ConvTranspose2d(i, o, 4, stride, padding, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))


def downward(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True))


def forger():
    return nn.Sequential(upward(10, 16, 1, 0), upward(16, 8), nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh())


def judge():
    first = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True))
    return nn.Sequential(first, downward(8, 16), nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten(0))


class Dcgan(nn.Module):
    """Loss of one of the two networks of a DCGAN; the other stays."""

    def __init__(self, trained):
        super().__init__()
        self.g, self.d, self.trained = forger(), judge(), trained
        (self.g if trained == "d" else self.d).requires_grad_(False)

    def forward(self, noise, real):
        one, zero = torch.ones(len(real)), torch.zeros(len(real))
        made = self.g(noise)
        if self.trained == "g":
            return F.binary_cross_entropy_with_logits(self.d(made), one)
        return F.binary_cross_entropy_with_logits(self.d(real), one) + \
            F.binary_cross_entropy_with_logits(self.d(made.detach()), zero)


for player in "dg":
    add(f"dcgan_{player}", lambda player=player: Dcgan(player), lambda: (torch.randn(8, 10, 1, 1), torch.randn(8, 3, 16, 16)), "own")
