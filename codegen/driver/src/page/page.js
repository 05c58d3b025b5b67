'use strict';
// Everything on the page is readable without this: it adds tips, keys, search and a time scale.
const all = (query, from = document) => [...from.querySelectorAll(query)];
const tip = document.getElementById('tip');
const pictures = all('svg.boxes').map((svg) => ({
  svg,
  boxes: all('.b', svg),
  said: svg.closest('.plot').nextElementSibling,
  on: null,
}));

// Texts become labels, so that the browser does not show a second tip.
for (const { boxes, said } of pictures) {
  said.setAttribute('aria-live', 'polite');
  for (const box of boxes) {
    box.setAttribute('aria-label', box.textContent);
    box.textContent = '';
  }
}

const text = (box) => box.getAttribute('aria-label');
const place = (box) => {
  const get = (name) => Number(box.getAttribute(name));
  return { x: get('x'), y: get('y'), w: get('width'), h: get('height') };
};

function select(picture, box, scroll) {
  picture.on?.classList.remove('on');
  picture.on = box;
  picture.said.textContent = box ? text(box) : '';
  if (!box) return;
  box.classList.add('on');
  if (!scroll) return;
  const view = picture.svg.closest('.scroll');
  const { x, w } = place(box);
  const at = ((x + w / 2) / 100000) * view.scrollWidth;
  if (at < view.scrollLeft || at > view.scrollLeft + view.clientWidth) view.scrollLeft = at - view.clientWidth / 2;
}

// The nearest box above or below, in units of the picture.
function beside({ boxes, on }, up) {
  const own = place(on);
  const middle = own.x + own.w / 2;
  let best = null;
  let least = Infinity;
  for (const box of boxes) {
    if (box.classList.contains('dim')) continue;
    const { x, y, w, h } = place(box);
    const dy = (up ? 1 : -1) * (own.y + own.h / 2 - y - h / 2);
    if (dy <= 0) continue;
    const far = Math.max(x - middle, middle - (x + w), 0) + dy;
    if (far < least) [best, least] = [box, far];
  }
  return best;
}

function next(picture, key) {
  const shown = picture.boxes.filter((box) => !box.classList.contains('dim'));
  const at = shown.indexOf(picture.on);
  switch (key) {
    case 'ArrowRight': return shown[at + 1] ?? picture.on;
    case 'ArrowLeft': return shown[Math.max(at - 1, 0)] ?? picture.on;
    case 'ArrowUp': return picture.on ? beside(picture, true) ?? picture.on : shown[0];
    case 'ArrowDown': return picture.on ? beside(picture, false) ?? picture.on : shown[0];
    case 'Home': return shown[0];
    case 'End': return shown[shown.length - 1];
    case 'Escape': return null;
    default: return undefined;
  }
}

function point(event) {
  const box = event.target.closest('.b');
  tip.hidden = !box;
  if (!box) return;
  tip.textContent = text(box);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  const below = event.clientY + 18;
  tip.style.top = `${below + height > innerHeight ? event.clientY - height - 10 : below}px`;
}

for (const picture of pictures) {
  const { svg } = picture;
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  svg.addEventListener('click', (event) => select(picture, event.target.closest('.b'), false));
  svg.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const box = next(picture, event.key);
    if (box === undefined) return;
    event.preventDefault();
    select(picture, box, true);
  });
}

// One time scale for all pictures with a time axis, which scroll together.
const scrolls = all('main .scroll').filter((scroll) => !scroll.closest('.bar'));
const zoom = document.getElementById('zoom');
zoom.addEventListener('input', () => {
  const [first] = scrolls;
  const middle = (first.scrollLeft + first.clientWidth / 2) / first.scrollWidth;
  for (const scroll of scrolls) {
    scroll.style.setProperty('--zoom', 2 ** Number(zoom.value));
    scroll.classList.toggle('near', Number(zoom.value) >= 2.5);
  }
  for (const scroll of scrolls) scroll.scrollLeft = middle * scroll.scrollWidth - scroll.clientWidth / 2;
});
for (const scroll of scrolls) {
  scroll.addEventListener('scroll', () => {
    for (const other of scrolls) if (other.scrollLeft !== scroll.scrollLeft) other.scrollLeft = scroll.scrollLeft;
  });
}

// Boxes and rows whose text has the words in it stand out.
const count = document.getElementById('count');
document.getElementById('find').addEventListener('input', (event) => {
  const words = event.target.value.trim().toLowerCase();
  let found = 0;
  for (const { boxes } of pictures) {
    for (const box of boxes) {
      const matches = text(box).toLowerCase().includes(words);
      box.classList.toggle('dim', !matches);
      found += matches;
    }
  }
  for (const row of all('.rows tbody tr')) row.hidden = !row.textContent.toLowerCase().includes(words);
  count.textContent = words ? `${found} boxes` : '';
});
document.querySelector('.tools').hidden = false;
