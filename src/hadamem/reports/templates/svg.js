// Small pieces of SVG: elements, markers, the symbol of a label, and the box that follows the pointer.

function svgNode(name, attributes, parent, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function htmlNode(name, className, parent, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function corners(count, turn, inner) {
  // A regular polygon with radius 1; with `inner`, a star.
  const points = [];
  const total = inner ? 2 * count : count;
  for (let i = 0; i < total; i += 1) {
    const angle = turn + (2 * Math.PI * i) / total;
    const radius = inner && i % 2 ? inner : 1;
    points.push([radius * Math.sin(angle), -radius * Math.cos(angle)]);
  }
  return points;
}

const ARM = 0.38;
const PLUS = [[-ARM, -1], [ARM, -1], [ARM, -ARM], [1, -ARM], [1, ARM], [ARM, ARM], [ARM, 1], [-ARM, 1], [-ARM, ARM], [-1, ARM], [-1, -ARM],
  [-ARM, -ARM]];
const SHAPES = {
  square: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  up: corners(3, 0).map(([x, y]) => [1.15 * x, 1.15 * y + 0.15]),
  down: corners(3, Math.PI).map(([x, y]) => [1.15 * x, 1.15 * y - 0.15]),
  diamond: corners(4, 0).map(([x, y]) => [0.95 * x, 1.15 * y]),
  plus: PLUS,
  cross: PLUS.map(([x, y]) => [(x + y) * 0.74, (x - y) * 0.74]),
  star: corners(5, 0, 0.45).map(([x, y]) => [1.25 * x, 1.25 * y]),
  pentagon: corners(5, 0),
  hexagon: corners(6, 0),
};

function markerPath(marker, x, y, size) {
  if (!SHAPES[marker]) return `M${(x - size).toFixed(1)} ${y.toFixed(1)}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`;
  return `M${SHAPES[marker].map(([a, b]) => `${(x + size * a).toFixed(1)} ${(y + size * b).toFixed(1)}`).join('L')}Z`;
}

function drawMarkers(parent, style, points, size) {
  // All markers of a series as one path.
  const d = points.map(([x, y]) => markerPath(style.marker, x, y, size)).join('');
  svgNode('path', {
    d, fill: style.hollow ? '#ffffff' : style.colour, stroke: style.hollow ? style.colour : '#ffffff', 'stroke-width': style.hollow ? 1.6 : 0.7,
  }, parent);
}

function symbol(style, dashed) {
  // The piece of line with its marker that stands for a label in legends, buttons and read-outs.
  const svg = svgNode('svg', {width: 20, height: 12, viewBox: '0 0 20 12', 'aria-hidden': 'true'});
  svgNode('line', {x1: 0, x2: 20, y1: 6, y2: 6, stroke: style.colour, 'stroke-width': 2, 'stroke-dasharray': dashed ? style.dash : 'none'}, svg);
  if (!dashed) drawMarkers(svg, style, [[10, 6]], 4.2);
  return svg;
}

const tip = {
  show(x, y, fill) {
    const box = document.getElementById('tip');
    box.replaceChildren();
    fill(box);
    box.hidden = false;
    const {width, height} = box.getBoundingClientRect();
    const left = x + 16 + width > window.innerWidth - 4 ? x - 16 - width : x + 16;
    const top = Math.min(y + 14, window.innerHeight - height - 4);
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    document.getElementById('tip').hidden = true;
  },
};

function shortened(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}\u2026` : text;
}

function drawAxisTitles(svg, figure, box) {
  const label = svgNode('text', {class: 'axis-title', 'text-anchor': 'middle', x: (box.left + box.right) / 2, y: box.height - 6}, svg);
  label.textContent = shortened(figure.x_label, Math.floor((box.right - box.left) / 7));
  const middle = (box.top + box.bottom) / 2;
  svgNode('text', {class: 'axis-title', 'text-anchor': 'middle', transform: `translate(13 ${middle}) rotate(-90)`}, svg,
    shortened(figure.y_label, Math.floor((box.bottom - box.top) / 7)));
}
