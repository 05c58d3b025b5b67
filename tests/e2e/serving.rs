//! Compiled plans behind the server: the bits of `memrun` at the smallest budget, for whole batches, single
//! rows and rows that share a batch with others.

use std::path::Path;
use std::thread;

use memc_plan::PlanFile;
use memc_runtime::serve::{ServeOptions, ServedPlan, Server};
use memc_runtime::{RunOptions, Silent};
use serde_json::json;

use crate::client::Client;
use crate::support::{adversarial, floats, json, memc_ok, npz, number, put, root};

/// Data of a model, and the outputs that memrun computes of it, by row.
struct Case {
    row: Vec<u64>,
    x: Vec<f32>,
    scores: Vec<f32>,
}

const SCORES: usize = 10;

impl Case {
    /// Compiles a model within its smallest budget and runs it over the data of a recipe.
    fn new(folder: &Path, name: &str, recipe: &str, row: &[u64]) -> Case {
        let model = format!("models/gen/{name}.forward.onnx");
        let need = json(&memc_ok(&["estimate", "--json", &model, "--inference"]));
        let budget = format!("{}B", number(&need, "smallest_feasible_bytes"));
        let plan = folder.join(format!("{name}.plan"));
        memc_ok(&["compile", &model, "--inference", "--gpu-mem", &budget, "-o", plan.to_str().unwrap()]);
        let arrays = npz(&root().join(format!("models/recipes/{recipe}.npz")));
        let (x, y) = (put(folder, "x.npy", &arrays["x"]), folder.join("y.npy"));
        let inputs = vec![("input".into(), x.into())];
        let collect = vec![("output".into(), y.clone())];
        let options = RunOptions { inputs, collect, ..RunOptions::default() };
        memc_runtime::run(&PlanFile::open(&plan).unwrap(), &options, &mut Silent).unwrap();
        let scores = floats(&std::fs::read(y).unwrap());
        Case { row: row.to_vec(), x: floats(&arrays["x"]), scores }
    }

    /// Asks for some rows in binary, and compares the bits.
    fn ask(&self, client: &mut Client, model: &str, from: usize, count: usize) {
        let each = self.row.iter().product::<u64>() as usize;
        let bytes: Vec<u8> =
            self.x[from * each..][..count * each].iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape = [&[count as u64], &self.row[..]].concat();
        let input = json!({"name": "input", "datatype": "FP32", "shape": shape,
            "parameters": {"binary_data_size": bytes.len()}});
        let head = json!({"inputs": [input], "parameters": {"binary_data_output": true}}).to_string();
        let reply = client.binary(&format!("/v2/models/{model}/infer"), &head, &bytes);
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        let length: usize = reply.header("Inference-Header-Content-Length").unwrap().parse().unwrap();
        let wanted: Vec<u8> =
            self.scores[from * SCORES..][..count * SCORES].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(reply.body[length..] == wanted, "{model}: rows {from} to {}", from + count - 1);
    }
}

/// Two compiled plans in one server, asked by many clients at once.
#[test]
fn served_plans_have_the_bits_of_memrun() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("cnn_bn", Case::new(folder.path(), "cnn_bn", "head", &[1, 28, 28])),
        ("mlp_dropout", Case::new(folder.path(), "mlp_dropout", "dropout", &[32])),
    ];
    let plan = |(name, _): &(&str, Case)| {
        let path = folder.path().join(format!("{name}.plan"));
        ServedPlan { name: Some((*name).to_string()), path, init: None }
    };
    let options = ServeOptions {
        plans: cases.iter().map(plan).collect(),
        http: Some("127.0.0.1:0".parse().unwrap()),
        cpu: adversarial(7),
        ..ServeOptions::default()
    };
    let server = Server::start(&options).unwrap_or_else(|e| panic!("{e}"));
    let address = server.address().unwrap().to_string();
    thread::scope(|scope| {
        for client in 0..6 {
            let (address, cases) = (&address, &cases);
            scope.spawn(move || {
                let mut connection = Client::new(address);
                for i in 0..12 {
                    let (name, case) = &cases[(client + i) % 2];
                    let count = 1 + (client + i / 2) % 4;
                    case.ask(&mut connection, name, (client * 3 + i) % (20 - count), count);
                }
            });
        }
    });
    server.end();
}
