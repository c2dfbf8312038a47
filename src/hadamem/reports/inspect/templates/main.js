// Builds the page from the recording, and moves through time.
let DATA = null;

function drawAll() {
  document.getElementById("step").value = chosen.step;
  document.getElementById("now").textContent = `step ${chosen.step} of ${DATA.steps - 1}`;
  document.getElementById("frame").src = `data:image/png;base64,${DATA.frames.images[DATA.frames.order[chosen.step]]}`;
  document.getElementById("caption").textContent = DATA.captions[chosen.step];
  figures.forEach(figure => figure.draw());
}

function goTo(step) {
  chosen.step = Math.max(0, Math.min(DATA.steps - 1, step));
  drawAll();
}

function setPlaying(playing) {
  chosen.playing = playing;
  const button = document.getElementById("play");
  button.textContent = playing ? "Pause" : "Play";
  button.setAttribute("aria-pressed", String(playing));
  if (!playing) return;
  if (chosen.step === DATA.steps - 1) goTo(0);
  let before = null, owed = 0;
  const move = now => {
    if (!chosen.playing) return;
    owed += before === null ? 0 : (now - before) / 1000 * chosen.speed;
    before = now;
    if (owed >= 1) {
      goTo(chosen.step + Math.floor(owed));
      owed -= Math.floor(owed);
    }
    if (chosen.step === DATA.steps - 1) setPlaying(false);
    else requestAnimationFrame(move);
  };
  requestAnimationFrame(move);
}

function listen() {
  const on = (id, event, act) => document.getElementById(id).addEventListener(event, act);
  on("play", "click", () => setPlaying(!chosen.playing));
  on("step", "input", event => { setPlaying(false); goTo(Number(event.target.value)); });
  on("speed", "change", event => { chosen.speed = Number(event.target.value); });
  on("scale", "change", event => { chosen.scale = event.target.value; drawAll(); });
  document.addEventListener("keydown", event => {
    if (["SELECT", "INPUT"].includes(event.target.tagName) && event.target.id !== "step") return;
    const far = event.shiftKey ? 10 : 1;
    const moves = { ArrowRight: far, ArrowLeft: -far, Home: -DATA.steps, End: DATA.steps };
    if (event.key in moves) { event.preventDefault(); setPlaying(false); goTo(chosen.step + moves[event.key]); }
    if (event.key === " " && event.target.id !== "play") { event.preventDefault(); setPlaying(!chosen.playing); }
  });
  let wait = null;
  window.addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(drawAll, 100); });
}

// The part of a section that figures go into.
function place(id) {
  const section = document.getElementById(id);
  return section && section.querySelector(":scope > div");
}

function buildEpisode() {
  const acting = document.getElementById("acting"), actions = DATA.actions;
  addCurves(acting, "Reward", "of each action", [{ name: "reward", values: DATA.rewards }], { bars: true, height: 88 });
  const value = DATA.curves.filter(c => c.name === "value").map(c => ({ name: "value: return to come, as the critic expects it", short: "value", values: c.values }));
  addCurves(acting, value.length ? "Return and value" : "Return", "", [{ name: "return so far", short: "return", values: DATA.returns }, ...value], { height: 104 });
  if (actions) {
    const trace = { name: "action probabilities", title: "Actions", help: "probability of each; the dot is the one taken", role: "gate",
      columns: actions.names.map((_, n) => n), map: actions.map };
    const height = Math.max(90, Math.min(240, actions.names.length * 17 + 30));
    addVectorMap(acting, trace, { names: actions.names, marks: actions.taken, height });
  }
  const moves = DATA.curves.filter(c => c.name !== "value");
  for (let n = 0; n < moves.length; n += 2) addCurves(acting, `Action ${n / 2}`, "in the units of the env", moves.slice(n, n + 2).map(c => ({ name: c.name.split(": ")[1], values: c.values })));
}

function buildMemory() {
  const of = kind => DATA.traces.filter(trace => trace.kind === kind);
  const factors = DATA.traces.filter(trace => trace.role === "factor");
  for (const trace of of("matrix")) addMatrix(place("cells"), trace);
  for (const trace of of("matrix").filter(trace => trace.role === "factor")) addClasses(place("cells"), trace);

  const forgetting = place("forgetting");
  if (factors.length) {
    const options = element("div", { class: "options" });
    forgetting.before(options);
    addChoice(options, "epsilon", "a cell counts as erased or strengthened beyond 1 ± ε with ε =", DATA.epsilons.map((e, n) => [n, e]), chosen.epsilon, n => { chosen.epsilon = Number(n); });
  }
  for (const trace of factors) {
    if (trace.shares) addShares(forgetting, trace);
    if (trace.kind === "vector") addVectorMap(forgetting, trace);
  }
  for (const trace of of("scalar")) addCurves(forgetting, trace.name, trace.help, [{ name: trace.name, values: trace.values }]);
  for (const trace of of("vector").filter(trace => trace.role !== "factor")) addVectorMap(place("time"), trace);

  const attention = place("attention");
  if (of("attention").length) {
    const options = element("div", { class: "options" });
    attention.before(options);
    const heads = Math.max(...of("attention").map(trace => trace.heads));
    addChoice(options, "head", "head", Array.from({ length: heads }, (_, n) => [n, n + 1]), 0, n => { chosen.head = Number(n); });
  }
  for (const trace of of("attention")) addAttention(attention, trace);

  const reach = place("reach");
  if (DATA.triangles.length) {
    const options = element("div", { class: "options" });
    reach.before(options);
    addChoice(options, "relative", "colours", [["", "of the whole triangle"], ["1", "relative to the largest of each row"]], "", v => { chosen.relative = v !== ""; });
  }
  for (const triangle of DATA.triangles) {
    const columns = triangle.sources.length;
    addTriangle(reach, { name: triangle.title, help: triangle.help, targets: triangle.targets, sources: triangle.sources, log: true, isRelative: () => chosen.relative,
      values: (k, c) => triangle.values[k * columns + c] });
  }
  for (const id of ["cells", "forgetting", "time", "attention", "reach"]) {
    if (!place(id).children.length) document.getElementById(id).classList.add("empty");
  }
}

async function start() {
  DATA = await unpackAll(JSON.parse(document.getElementById("data").textContent));
  buildEpisode();
  if (document.getElementById("cells")) buildMemory();
  listen();
  drawAll();
  document.body.dataset.ready = "true";
}

start().catch(error => {
  const problem = document.getElementById("problem");
  problem.hidden = false;
  problem.textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old for this page: it lacks DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 or newer have it)."
    : `The page could not be drawn: ${error}`;
  throw error;
});
