// The page: which series are shown, which figure of a group, how tables are sorted.

const page = JSON.parse(document.getElementById('data').textContent);
const hidden = new Set(); // labels, for the whole page
const blocks = [...document.querySelectorAll('figure.chart')].map(makeBlock);

function makeBlock(element) {
  // own: labels that were switched in this block's legend, which then count more than the buttons at the top.
  const block = {element, own: new Map(), select: element.querySelector('select')};
  block.isShown = (label) => (block.own.has(label) ? block.own.get(label) : !hidden.has(label));
  block.current = () => element.querySelector('.one:not([hidden])');
  if (block.select) {
    block.select.addEventListener('change', () => {
      element.querySelectorAll('.one').forEach((one) => { one.hidden = one.dataset.figure !== block.select.value; });
      drawBlock(block);
    });
  }
  return block;
}

function drawBlock(block) {
  const one = block.current();
  const figure = page.figures[one.dataset.figure];
  const plot = one.querySelector('.plot');
  tip.hide();
  if (figure.type === 'heat_map') {
    drawHeatMap(plot, figure, page);
    return;
  }
  drawLegend(block, one.querySelector('.legend'), figure);
  drawChart(plot, figure, page.styles, block.isShown);
}

function drawLegend(block, legend, figure) {
  const active = document.activeElement && legend.contains(document.activeElement) ? document.activeElement.dataset.label : null;
  legend.replaceChildren();
  const seen = new Map();
  figure.series.forEach((series) => seen.set(series.label, (seen.get(series.label) ?? true) && series.dashed));
  if (seen.size < 2 && !figure.series.some((series) => series.dashed)) return;
  seen.forEach((dashed, label) => {
    const button = htmlNode('button', 'toggle', legend);
    button.type = 'button';
    button.dataset.label = label;
    fillToggle(button, label, dashed);
    button.setAttribute('aria-pressed', String(block.isShown(label)));
    button.addEventListener('click', () => {
      block.own.set(label, !block.isShown(label));
      drawBlock(block);
    });
    if (label === active) button.focus();
  });
  if (figure.series.some((series) => series.dashed && !seen.get(series.label))) {
    const key = htmlNode('span', 'key', legend);
    key.appendChild(symbol(OVER_A_BAR, true));
    htmlNode('span', '', key, 'dashed: reference');
  }
}

function fillToggle(button, label, dashed) {
  button.replaceChildren(symbol(page.styles[label], dashed));
  htmlNode('span', '', button, label);
  button.title = `show or hide ${label}`;
}

function setHidden(labels, isHidden) {
  labels.forEach((label) => {
    if (isHidden) hidden.add(label);
    else hidden.delete(label);
    blocks.forEach((block) => block.own.delete(label));
  });
  toggles.forEach((button) => button.setAttribute('aria-pressed', String(!hidden.has(button.dataset.label))));
  blocks.forEach(drawBlock);
}

const toggles = [...document.querySelectorAll('#toggles .toggle')];
toggles.forEach((button) => {
  fillToggle(button, button.dataset.label, false);
  button.addEventListener('click', () => setHidden([button.dataset.label], !hidden.has(button.dataset.label)));
});
[['show-all', false], ['show-none', true]].forEach(([id, isHidden]) => {
  const button = document.getElementById(id);
  if (button) button.addEventListener('click', () => setHidden(toggles.map((toggle) => toggle.dataset.label), isHidden));
});

function sortTable(heading) {
  // Numbers by size, texts as people sort them; what is missing comes last both ways. A third click restores the order.
  const table = heading.closest('table');
  const body = table.tBodies[0];
  const column = heading.cellIndex;
  const next = {none: 'descending', descending: 'ascending', ascending: 'none'};
  const isText = [...body.rows].some((row) => !row.cells[column].classList.contains('number') && row.cells[column].dataset.sort);
  if (isText) [next.none, next.ascending, next.descending] = ['ascending', 'descending', 'none'];
  const order = next[heading.getAttribute('aria-sort')];
  [...table.tHead.rows[0].cells].forEach((cell) => cell.setAttribute('aria-sort', cell === heading ? order : 'none'));
  const rows = [...body.rows];
  rows.forEach((row, i) => { row.dataset.place = row.dataset.place || String(i); });
  const key = (row) => row.cells[column].dataset.sort;
  const compare = (a, b) => (isText ? a.localeCompare(b, 'en', {numeric: true}) : Number(a) - Number(b));
  rows.sort((a, b) => {
    const home = Number(a.dataset.place) - Number(b.dataset.place);
    if (order === 'none') return home;
    if (!key(a) || !key(b)) return (key(a) ? 0 : 1) - (key(b) ? 0 : 1) || home;
    return (order === 'descending' ? -1 : 1) * compare(key(a), key(b)) || home;
  });
  body.append(...rows);
}

document.querySelectorAll('.sort').forEach((button) => button.addEventListener('click', () => sortTable(button.closest('th'))));
document.querySelectorAll('td[data-tip]').forEach((cell) => {
  cell.addEventListener('pointermove', (event) => tip.show(event.clientX, event.clientY, (box) => htmlNode('div', '', box, cell.dataset.tip)));
  cell.addEventListener('pointerleave', tip.hide);
});

if (window.innerWidth <= 960) document.querySelector('nav details').open = false;

blocks.forEach(drawBlock);
const widths = new Map();
const watcher = new ResizeObserver((entries) => entries.forEach(({target}) => {
  const width = Math.round(target.getBoundingClientRect().width);
  if (widths.has(target) && widths.get(target) !== width) drawBlock(blocks.find((block) => block.element === target));
  widths.set(target, width);
}));
blocks.forEach((block) => watcher.observe(block.element));
window.addEventListener('scroll', tip.hide, {passive: true});
