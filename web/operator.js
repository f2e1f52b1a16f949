// The operator's page. It begins with the hour that the service remembers, and reads stats.json once a second. What it shows
// is the difference between two readings, so that a pause, a restart or a lost one makes no wrong number. Times are UTC.
//
// Strangers choose the names of keys: all that is read becomes text (textContent), never HTML.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => root.querySelectorAll(selector);

const kept = 3600e3; // milliseconds of history
const recent = 10e3; // milliseconds that a number of "now" is taken from
const columns = 180; // of a chart
const gutter = 48; // pixels beside it, for what its lines of help stand for

// Readings

const places = new Map(); // the name of a number, labels included: its place in every reading
const readings = []; // {time, run, start, up, numbers}, by time; none was missed within a run, and a start names the process
const restarts = []; // the times at which a process was seen first that is not the first
const operations = new Map(); // by name: the places of its counts
const outcomes = { success: [], same: [], mistake: [], refused: [], failure: [] };
const created = [];
const firsts = []; // by place: what a number was at first that the service does not remember, and that was not 0 before
const commits = { size: [], time: [] }; // buckets
let run = 0;
let started = 0; // when the process that was read last had started
let latest = null; // what was read last, whole
let ahead = 0; // by how many milliseconds the service's clock is ahead of this machine's

const now = () => Date.now() + ahead; // by the service's clock, as all times are

const outcome = (status) => {
  if (status === "304") return "same";
  if (status === "429") return "refused";
  return { 0: "failure", 4: "mistake", 5: "failure" }[status[0]] ?? "success"; // 0: cut off before it began
};

function entry(map, name, make) {
  if (!map.has(name)) map.set(name, make());
  return map.get(name);
}

const operation = (name) => entry(operations, name, () => ({ requests: [], refused: [], failed: [], buckets: [], statuses: {} }));

// labelsOf reads {operation="getPet",status="200"}. Go quotes a text nearly as JSON does.
function labelsOf(name) {
  const labels = {};
  for (const [, label, value] of name.matchAll(/(\w+)=("(?:[^"\\]|\\.)*")/g)) {
    try {
      labels[label] = JSON.parse(value);
    } catch {
      labels[label] = value.slice(1, -1);
    }
  }
  return labels;
}

// learn notes what a number that was not seen before belongs to.
function learn(name, value) {
  const place = places.size;
  places.set(name, place);
  const labels = labelsOf(name);
  const bucket = { place, bound: labels.le === "+Inf" ? Infinity : Number(labels.le) };
  switch (name.split("{")[0]) {
    case "petstore_requests_total": {
      const kind = outcome(labels.status);
      outcomes[kind].push(place);
      const of = operation(labels.operation);
      of.requests.push(place);
      of.statuses[labels.status] = [place];
      if (kind === "refused") of.refused.push(place);
      if (kind === "failure") of.failed.push(place);
      if (labels.operation === "createPet" && kind === "success") created.push(place);
      break;
    }
    case "petstore_request_duration_seconds_bucket":
      operation(labels.operation).buckets.push(bucket);
      firsts[place] = value;
      break;
    case "petstore_commit_requests_bucket":
      commits.size.push(bucket);
      break;
    case "petstore_commit_duration_seconds_bucket":
      commits.time.push(bucket);
  }
  for (const buckets of [commits.size, commits.time, ...[...operations.values()].map((of) => of.buckets)]) {
    buckets.sort((a, b) => a.bound - b.bound);
  }
}

// take keeps a reading.
function take(read, time) {
  const { process_start_time_seconds } = read.metrics;
  if (!readings.length && read.uptime > 0 && read.uptime < 10) { // at the start, all counters were 0
    take({ metrics: { process_start_time_seconds }, uptime: 0 }, time - read.uptime * 1e3);
  }
  for (const name of Object.keys(read.metrics)) if (!places.has(name)) learn(name, read.metrics[name]);
  const numbers = new Float64Array(places.size);
  for (const [name, value] of Object.entries(read.metrics)) numbers[places.get(name)] = value;
  const start = read.metrics.process_start_time_seconds;
  if (started && start !== started) {
    run++; // its counters begin at 0
    restarts.push(time);
  }
  started = start;
  while (restarts[0] < time - kept) restarts.shift();
  while (readings.length && (readings.at(-1).time >= time || readings[0].time < time - kept)) {
    if (readings.at(-1).time >= time) readings.pop(); // this machine's clock was set back
    else readings.shift();
  }
  readings.push({ time, run, start, up: read.uptime, numbers });
  latest = read;
}

// before is the index of the last reading at or before a time, or -1.
function before(time) {
  let low = -1;
  for (let high = readings.length; high - low > 1;) {
    const middle = (low + high) >> 1;
    if (readings[middle].time <= time) low = middle;
    else high = middle;
  }
  return low;
}

// between are two readings of one run around a time, or as far as they go; null if there is a gap.
function between(from, to) {
  const i = before(from);
  const last = before(to);
  const j = last >= 0 && readings[last].time < to && readings[last + 1]?.run === readings[last].run ? last + 1 : last;
  if (j < 0) return null;
  let first = Math.max(i, 0);
  while (readings[first].run !== readings[j].run) first++;
  return first < j && readings[j].time > from ? span([[readings[first], readings[j]]]) : null;
}

// across is what the readings between two times say of all processes, null if there are no two of one. What was counted
// while readings were missed is in the next one. The reading before the first time may be much older than it.
function across(from, to) {
  const pairs = new Map();
  for (const reading of readings.slice(before(from) + 1, before(to) + 1)) {
    pairs.set(reading.start, [pairs.get(reading.start)?.[0] ?? reading, reading]);
  }
  const list = [...pairs.values()].filter(([a, b]) => a !== b);
  return list.length ? span(list) : null;
}

const valueAt = (reading, place) => reading.numbers[place] ?? (reading.up && firsts[place]) ?? 0; // at the start all were 0
const sum = (list, reading) => list.reduce((total, place) => total + valueAt(reading, place), 0);
const gauge = (reading, name) => reading.numbers[places.get(name)] ?? null;

// span is what can be said of the time between the two readings of each pair. Time is the process's own, so that
// no delay on the way counts.
function span(pairs) {
  const over = (what) => pairs.reduce((all, [a, b]) => all + what(b) - what(a), 0);
  const seconds = over((reading) => reading.up);
  const count = (list) => over((reading) => sum(list, reading));
  return {
    count,
    rate: (list) => count(list) / seconds,
    counter: (name) => count([places.get(name) ?? -1]),
    seconds,
    end: pairs.at(-1)[1],
    // quantile is estimated as Prometheus does it, on a straight line within a bucket. What is above the last
    // bound is at least that.
    quantile(q, buckets) {
      const counts = buckets.map(({ place }) => count([place]));
      const rank = q * counts.at(-1);
      if (!(rank > 0)) return null;
      const i = counts.findIndex((n) => n >= rank);
      if (buckets[i].bound === Infinity) return buckets[i - 1].bound;
      const [low, less] = i > 0 ? [buckets[i - 1].bound, counts[i - 1]] : [0, 0];
      return low + ((buckets[i].bound - low) * (rank - less)) / (counts[i] - less);
    },
  };
}

// Numbers as text

const grouped = (digits) => new Intl.NumberFormat("en-GB", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const [whole, tenths, hundredths] = [0, 1, 2].map(grouped);
const shown = (format) => (n) => (n === null || !Number.isFinite(n) ? "–" : format(n));

// short has two or three digits that count.
const short = (n) => (n === 0 || n >= 100 ? whole : n >= 10 ? tenths : hundredths).format(n);
const rate = shown((n) => (n === 0 ? "0" : n < 0.01 ? "< 0.01" : (n >= 100 ? whole : n >= 1 ? tenths : hundredths).format(n)));
const integer = shown((n) => whole.format(n));
const percent = shown((n) => { // of which neither "0" nor "100" is rounded
  const near = n > 0 && n < 10 ? Math.max(n, 0.1) : n > 99 && n < 100 ? Math.min(n, 99.9) : 0;
  return `${near ? tenths.format(near) : whole.format(n)} %`;
});
const bytes = shown((n) => (n >= 2 ** 30 ? `${short(n / 2 ** 30)} GiB` : n < 2 ** 20 ? `${short(n / 2 ** 10)} KiB` : `${short(n / 2 ** 20)} MiB`));
const duration = shown((s) => {
  if (s >= 10) return "≥ 10 s";
  return s >= 1 ? `${short(s)} s` : s >= 1e-3 ? `${short(s * 1e3)} ms` : `${whole.format(s * 1e6)} µs`;
});
const hours = (time) => new Date(time).toISOString().slice(11, 19);
const clock = (time) => `${hours(time)} UTC`;
// day has its year if that is another one, or if it is asked for.
function day(time, withYear = new Date(time).getUTCFullYear() !== new Date(now()).getUTCFullYear()) {
  return new Date(time).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: withYear ? "numeric" : undefined, timeZone: "UTC" });
}
const instant = (time, withYear) => (!withYear && day(time) === day(now()) ? clock(time) : `${day(time, withYear)}, ${clock(time)}`);

function age(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const i = units.findIndex(([size]) => seconds >= size || size === 1);
  const parts = units.slice(i, i + 2).map(([size, unit], j) => [Math.floor((j ? seconds % units[i][0] : seconds) / size), unit]);
  return parts.filter(([n], j) => n > 0 || j === 0).map((part) => part.join(" ")).join(" ");
}

// Charts

const levels = (of) => [["p50", 0.5], ["p95", 0.95], ["p99", 0.99]].map(([name, q]) => (
  { name, value: (s) => s.quantile(q, operation(of).buckets) }));
const latency = (title, of) => ({ title: `${title}: latency`, format: duration, logarithmic: true, quiet: "No requests in this time", series: levels(of), styles: ["p50", "p95", "p99"] });
const upward = (n) => n && Math.ceil(n); // there is no half write
const writers = (s) => {
  const n = s.counter("petstore_commit_requests_count");
  return n > 0 ? s.counter("petstore_commit_requests_sum") / n : null;
};

const charts = {
  requests: { // 5xx would be a hair on the others
    title: "Requests per second", format: rate, stacked: true, strip: 4, styles: Object.keys(outcomes),
    series: Object.entries(outcomes).map(([name, list]) => ({ name, value: (s) => s.rate(list) })),
  },
  listPets: latency("List pets", "listPets"),
  createPet: latency("Create a pet", "createPet"),
  getPet: latency("Get a pet", "getPet"),
  creates: {
    title: "Creates and commits per second", format: rate, styles: ["n1", "n2"],
    series: [
      { name: "creates", value: (s) => s.rate(created) },
      { name: "commits", value: (s) => s.counter("petstore_commit_requests_count") / s.seconds },
    ],
  },
  sizes: {
    title: "Writes per commit", format: rate, styles: ["n1", "n2"], quiet: "No commits in this time",
    series: [{ name: "mean", value: writers }, { name: "p95", value: (s) => upward(s.quantile(0.95, commits.size)) }],
  },
  memory: {
    title: "Memory", format: bytes, step: 2 ** 20, styles: ["n1"],
    series: [{ name: "resident", value: (s) => gauge(s.end, "process_resident_memory_bytes") }],
  },
  cpu: {
    title: "CPU of one core", format: percent, styles: ["n1"],
    series: [{ name: "used", value: (s) => (gauge(s.end, "process_cpu_seconds_total") === null ? null
      : (100 * s.counter("process_cpu_seconds_total")) / s.seconds) }],
  },
};

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// ceiling is the next round number that is no less, in the unit of the numbers.
function ceiling(n, unit = 1) {
  const power = 10 ** Math.floor(Math.log10(n / unit));
  return unit * power * [1, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * power * unit >= n * (1 - 1e-9));
}

// scaleOf places values between 0 and 1, and says where lines of help are.
function scaleOf({ logarithmic, most, step }, values) {
  const high = Math.max(...values);
  if (logarithmic) {
    const top = Math.ceil(Math.log10(high) - 1e-9);
    const low = Math.min(top - 1, Math.floor(Math.log10(Math.max(Math.min(...values), 1e-6)) + 1e-9));
    const ticks = Array.from({ length: top - low + 1 }, (_, i) => 10 ** (low + i));
    return { ticks, at: (v) => (Math.log10(Math.max(v, 10 ** low)) - low) / (top - low) };
  }
  const top = most ?? ceiling(Math.max(high, step ?? 1), step);
  return { ticks: [0, top / 2, top], at: (v) => v / top };
}

// drawChart draws a chart anew. table has a row of numbers or nulls for each series.
function drawChart(box, chart, table, view) {
  const [width, height] = [box.clientWidth, box.clientHeight];
  if (!width) return;
  const [top, bottom] = [7, chart.strip ? 40 : 18];
  const x = (column) => gutter + (column / columns) * (width - gutter);
  const stacks = chart.stacked ? stack(table) : table;
  const values = stacks.flat().filter((v) => v !== null);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(chart, table, view) });
  const scale = scaleOf(chart, values.length ? values : [1]);
  const y = (v) => top + (1 - scale.at(v)) * (height - top - bottom);
  const past = readings.length ? Math.min(columns, (readings[0].time - view.from) / view.step) : 0;
  // Another process had that time, or nobody has seen it.
  if (past > 0) drawing.append(svg("rect", { class: "past", x: gutter, width: x(past) - gutter, y: top, height: height - top - bottom }));
  if (chart.strip) {
    const strip = (name, from, to) => svg("rect", { class: name, x: x(from), width: x(to) - x(from), y: height - 30, height: 9 });
    drawing.append(strip("strip", 0, columns), svg("text", { class: "value", x: gutter - 6, y: height - 21 }, "5xx"));
    table[chart.strip].forEach((n, i) => n > 0 && drawing.append(strip("failed", i, i + 1)));
  }
  spans.forEach((s, i) => {
    if (s || !readings.length || view.from + i * view.step < readings[0].time || view.from + i * view.step > framed) return;
    drawing.append(svg("rect", { class: "gap", x: x(i), width: x(i + 1) - x(i) + 0.3, y: top, height: height - top - bottom }));
  });
  for (let t = Math.ceil(view.from / view.tick) * view.tick; t < view.to; t += view.tick) {
    const at = x((t - view.from) / view.step);
    drawing.append(svg("line", { class: "tick", x1: at, x2: at, y1: top, y2: height - bottom }));
    if (at > gutter + 16 && at < width - 16) drawing.append(svg("text", { class: "time", x: at, y: height - 5 }, hours(t).slice(0, 5)));
  }
  const every = Math.ceil((14 * (scale.ticks.length - 1)) / (height - top - bottom)); // of the lines has room for its value
  [...scale.ticks].reverse().forEach((tick, i) => {
    if (!values.length) return;
    drawing.append(svg("line", { class: "rule", x1: gutter, x2: width, y1: y(tick), y2: y(tick) }));
    if (i % every === 0) drawing.append(svg("text", { class: "value", x: gutter - 6, y: y(tick) + 4 }, tickText(chart, tick)));
  });
  const order = chart.stacked ? [...stacks.keys()].reverse() : [...stacks.keys()];
  for (const i of order) {
    const style = `s${chart.styles[i % chart.styles.length]}`;
    const path = chart.stacked ? area(stacks[i], x, y) : line(stacks[i], x, y);
    drawing.append(svg("path", { class: `${chart.stacked ? "area" : "line"} ${style}`, d: path }));
  }
  for (const time of restarts.filter((t) => t > view.from)) {
    const at = x((time - view.from) / view.step);
    drawing.append(svg("line", { class: "restart", x1: at, x2: at, y1: top, y2: height - bottom }));
  }
  if (moment !== null) {
    drawing.append(svg("line", { class: "look", x1: x(moment + 0.5), x2: x(moment + 0.5), y1: top, y2: height - bottom }));
  }
  if (!values.length) {
    drawing.append(svg("text", { class: "empty", x: (gutter + width) / 2, y: height / 2 }, (readings.length > 1 && chart.quiet) || "No data yet"));
  }
  box.replaceChildren(drawing);
}

// tickText is short, for there is little room, and leaves out zeros that say nothing: 50.0 MiB is 50 MiB.
const compact = new Intl.NumberFormat("en-GB", { notation: "compact" });
const tickText = ({ format }, tick) => (format === rate && tick >= 1e4 ? compact.format(tick)
  : format(tick).replace("≥ ", "").replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, ""));

// stack adds each series to the ones below it.
function stack(table) {
  const below = Array(columns).fill(0);
  return table.map((row) => row.map((v, i) => (v === null ? null : (below[i] += v))));
}

// area fills from the ground up; a gap is left out. What lies above is drawn first.
function area(row, x, y) {
  return row.map((v, i) => (v === null ? "" : `M${x(i).toFixed(1)} ${y(0).toFixed(1)}V${y(v).toFixed(1)}H${(x(i + 1) + 0.3).toFixed(1)}V${y(0).toFixed(1)}Z`)).join("");
}

// line joins what has no gap between; a value alone is a dash.
function line(row, x, y) {
  return row.map((v, i) => {
    if (v === null) return "";
    const point = `${x(i + 0.5).toFixed(1)} ${y(v).toFixed(1)}`;
    if (i > 0 && row[i - 1] !== null) return `L${point}`;
    return row[i + 1] === null || i + 1 === row.length ? `M${x(i).toFixed(1)} ${y(v).toFixed(1)}H${x(i + 1).toFixed(1)}` : `M${point}`;
  }).join("");
}

// summary says in words what a chart shows.
function summary(chart, table, view) {
  const said = chart.series.map(({ name }, i) => {
    const values = table[i].filter((v) => v !== null);
    if (!values.length) return `${words[name] ?? name} no data`;
    return `${words[name] ?? name} now ${chart.format(table[i].at(-1))}, at most ${chart.format(Math.max(...values))}`;
  });
  return `${chart.title}, ${view.name}: ${said.join("; ")}`;
}
const words = { success: "2xx", same: "304", mistake: "4xx", refused: "429", failure: "5xx" };

// The page

let minutes = 5;
let paused = false;
let chosen = null; // the column that the slider has chosen, or null for now; it moves on with its time
let pointed = null; // the column under the pointer, or null
let moment = null; // the column that is looked at, or null for now
let state = "waiting";
let missedAt = 0; // when no reading came first
let framed = 0; // the time that is shown as now
let view = null;
let spans = []; // for each column, or null
let current = null; // the span of now, or null

// write leaves alone what is there already, and with it what somebody has selected.
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function put(name, text) {
  for (const element of $$(`[data-value="${name}"]`)) write(element, text);
}

// frame sets what is shown when it is now: columns that do not move while time goes on.
function frame(now) {
  const step = (minutes * 60e3) / columns;
  const to = Math.ceil(now / step) * step;
  if (chosen !== null && view?.step === step) chosen -= Math.round((to - view.to) / step);
  if (chosen < 0) chosen = null; // that time is not shown any more
  view = { step, to, from: to - columns * step, tick: { 5: 60e3, 15: 300e3, 60: 900e3 }[minutes], name: `last ${range()}` };
  spans = Array.from({ length: columns }, (_, i) => between(view.from + i * step, Math.min(view.from + (i + 1) * step, now)));
  framed = now;
}

const range = () => (minutes === 60 ? "hour" : `${minutes} minutes`);

function draw() {
  if (document.hidden) return;
  if (!paused) {
    const live = state === "live";
    frame(live ? readings.at(-1).time : now());
    current = live ? between(framed - recent, framed) : null;
  }
  moment = pointed ?? chosen;
  const at = moment === null ? current : spans[moment];
  for (const box of $$("[data-chart]")) {
    const name = box.dataset.chart;
    const chart = charts[name];
    const table = chart.series.map(({ value }) => spans.map((s) => s && value(s)));
    drawChart(box, chart, table, view);
    chart.series.forEach((one) => put(`${name}.${one.name}`, at ? chart.format(one.value(at)) + (one.name === "p99" ? few(at, name) : "") : "–"));
  }
  put("requests.total", at ? rate(at.rate(Object.values(outcomes).flat())) : "–");
  for (const [name, q] of [["p50", 0.5], ["p99", 0.99]]) put(`commit.${name}`, at ? duration(at.quantile(q, commits.time)) : "–");
  drawMoment(at);
  drawWell();
  drawBusy();
  if (paused) return;
  drawFacts();
  drawOperations();
  drawReport();
}

function drawMoment(at) {
  const slider = $("#moment");
  slider.max = columns - 1;
  slider.value = moment ?? columns - 1;
  const time = moment === null ? "now" : clock(view.from + (moment + 1) * view.step);
  write($("#moment-text"), time + (at || moment === null ? "" : ", no data"));
  slider.setAttribute("aria-valuetext", time);
  const when = paused ? `paused at ${clock(framed)}` : "last 10 s";
  for (const element of $$(".when")) write(element, moment === null ? when : `at ${time}`);
}

// few tells of how few requests a p99 is, if they are fewer than 100.
function few(s, name) {
  const n = s.count(operation(name).buckets.slice(-1).map(({ place }) => place));
  return n > 0 && n < 100 ? ` of ${n}` : "";
}

// covered is the time that is counted: less than what is shown if the process is younger.
function covered() {
  const first = readings[0];
  if (!first || first.time < view.from + view.step) return `in the ${range()} shown`;
  return `since ${first.up < 1 ? "the start at " : ""}${clock(first.time)}`;
}

// What to do first about a reason, and where to read on: the first whose pattern is in "ALERT: WORDS", or in ": WORDS" of a store.
const remedies = [
  [/^: the service does not respond/, "Look whether it runs: systemctl status petstore. If it does, its disk hangs.", "What you see"],
  [/^PetstoreServerErrors: .* 500/, "journalctl -u petstore says why.", "The log"],
  [/sync .*has failed/, "Restart nothing yet: first make a backup on another disk, then unmount and mount.", "When the disk fails"],
  [/malformed|not a database/, "Damage: export first, then restore.", "A damaged database"],
  [/: .*removed or replaced/, "Do not stop the service before /readyz names a copy.", "A deleted database"],
  [/^: .*locked/, "End the other program that holds the lock of the database.", "When another program holds the lock"],
  [/^(PetstoreServerErrors|PetstoreCommitsFail)?: /, "The log says why. If the disk is full, free space; never delete -wal, -shm, -lock.", "When the disk fails"],
  [/^PetstoreIDsGivenAgain: /, "Pets that were confirmed are lost: compare the nodes of the cluster, or restore a file.", "When an id is given again"],
  [/^PetstoreForeignKeys: /, "Restore a copy of this environment, or look at -db and -staging.", "Staging"],
  [/^PetstoreBans: /, "Tell the owners to heed Retry-After: a ban ends by itself, and hurts no other key.", "A key that sends too fast"],
  [/^PetstoreDiskFills: /, "Delete .old and .partial files and old backups, never -wal, -shm, -lock; or get a larger disk.", "When the disk fails"],
  [/^PetstoreNodeLost: /, "Start that node, unless it is “not used”.", "What happens when", "docs/cluster.md"],
  [/^PetstoreWritesQueue: /, "Give the service a faster disk, or fewer writes.", "Alerts"],
  [/^PetstoreSlow: /, "Look below for the cause: long commits, the CPU, or a busy key.", "Alerts"],
  [/^PetstoreUnknownOutcomes: /, "Nothing is broken: look why nodes are lost.", "Alerts"],
  [/^PetstoreBackupIsOld: /, "journalctl -u petstore-backup says why there was none since.", "Backup and restore"],
  [/^PetstoreOwnCertificateEnds: /, "Look why the file of -tls-cert is not renewed.", "Flags"],
  [/^PetstoreCertificateUnusable: /, "The log says why; put a pair there that matches before you restart.", "Flags"],
];

// remedyOf is the line for a reason. A store that is a cluster fails for reasons of its own.
function remedyOf({ alert = "", words }) {
  const [, ...remedy] = remedies.find(([pattern]) => pattern.test(`${alert}: ${words}`)) ?? [];
  const nodes = latest?.metrics.petstore_nodes;
  if (!nodes || remedy[1] !== "When the disk fails") return remedy;
  return latest.metrics.petstore_nodes_serving > nodes / 2
    ? ["The log says why, and “Service” names the state of each node.", "What happens when", "docs/cluster.md"]
    : ["Start nodes until more than half serve. Never start an empty one now.", "A lost majority", "docs/cluster.md"];
}

// wordsOf tells how bad a reason is. Of requests that failed, it names the part of each operation.
function wordsOf({ alert, words, number, share }) {
  const [, status] = words.match(/^responses of (\d+)/) ?? [];
  const lately = status && across(now() - 300e3, now());
  const parts = Object.entries({ listPets: "lists", createPet: "creates", getPet: "fetches" }).map(([name, requests]) => {
    const of = operation(name);
    const n = lately ? lately.count(of.statuses[status] ?? []) : 0;
    return n > 0 && `${percent((100 * n) / lately.count(of.buckets.slice(-1).map(({ place }) => place)))} of ${requests} failed: ${integer(n)} in 5 minutes`;
  }).filter(Boolean);
  if (parts.length) return `${parts.join("; ")}, with status ${status}`;
  const which = about[alert]?.().slice(0, 3).join(", ");
  return words.replace("{number}", integer(number)).replace("{share}", percent(100 * share)).replace("{age}", age(number))
    + (which ? ` (${which})` : "");
}

const about = {
  PetstoreBans: () => (latest.report?.nearLimits ?? []).filter(({ bannedUntil }) => bannedUntil).map(({ id, name }) => `#${id} ${name}`),
  PetstoreNodeLost: () => (latest.members ?? []).filter(({ state: role }) => !/^[LF]/.test(role)).map(({ node }) => node),
  PetstoreDiskFills: () => [$('[data-value="fact.node"]').textContent],
};

// drawVerdict says whether all is well, as the service judges it. That it does not respond only others know.
function drawVerdict() {
  let verdict = latest?.verdict ?? { ready: true };
  const since = missedAt || (verdict.ready && silentAt);
  if (since) verdict = { reasons: [{ words: missedAt ? "the service does not respond" : "the store does not respond", since }] };
  const reasons = verdict.reasons ?? [];
  const hurts = reasons.some(({ fails }) => fails);
  const look = !latest && !since ? "waiting" : !verdict.ready || hurts ? "unready" : reasons.length ? "watch" : "well";
  const red = verdict.ready ? "Failed:" : "Not ready:";
  const heading = { waiting: "Waiting", unready: red, watch: "Watch:", well: "All is well" }[look];
  const list = $("#verdict ul");
  while (list.children.length > reasons.length) list.lastChild.remove();
  reasons.forEach((reason, i) => {
    const item = list.children[i] ?? list.appendChild(document.createElement("li"));
    if (!item.firstChild) item.append(text(""), " ", text(""));
    const [remedy, treated, where = "docs/operating.md"] = remedyOf(reason);
    write(item.firstChild, wordsOf(reason) + (reason.since ? `, since ${instant(reason.since)}` : ""));
    write(item.lastChild, `${remedy ?? ""} See “${treated}” in ${where}.`);
  });
  $("#verdict").dataset.look = look;
  write($("#verdict b"), heading);
  write($("#verdict .as-seen"), latest?.uptime < 300 && !since ? `as seen since the start at ${instant(started * 1e3)}` : "");
  write($("#said"), `${heading} ${reasons.map(({ words }) => words.replace(/:? ?\{\w+\}( of)?/g, "")).join(", ")}`);
  document.title = `${look === "well" ? "" : `${heading.replace(":", "")} – `}${place} – Pet Store operations`;
}

// drawWell has the numbers of it: what needs somebody is red.
function drawWell() {
  const live = state === "live";
  const all = across(view.from, framed);
  const counted = (name) => (all ? all.counter(name) : null);
  const failed = all ? all.count(outcomes.failure) : null;
  const lost = counted("petstore_commit_failures_total");
  const { ready: isJudgedReady, readySince } = latest?.verdict ?? {};
  const isReady = isJudgedReady && !silentAt;
  const since = isJudgedReady && silentAt || readySince;
  const atStart = Math.abs(since - started * 1e3) < 1e3 ? "the start at " : "";
  tell("well.ready", live ? `${isReady ? "Ready" : "Not ready"} since ${atStart}${instant(since)}` : $("#state").textContent, live && isReady);
  tell("well.failures", `${some(failed, "response")} of 5xx`, !failed);
  tell("well.commits", some(lost, "failed commit"), !lost);
  const n = latest?.report?.banned;
  const who = n === 1 ? `1 key banned: ${about.PetstoreBans()[0]}` : n ? `${n} keys banned` : "no key banned";
  put("well.bans", latest?.report ? who : "keys not read yet");
  put("bans.running", integer(n ?? null));
  put("bans.near", integer(latest?.report ? latest.report.near - n : null));
}

function some(n, thing) {
  return `${integer(n)} ${thing}${n === 1 ? "" : "s"}`;
}

function tell(name, words, good) {
  put(name, words);
  $(`[data-value="${name}"]`).classList.toggle("bad", !good);
}

// drawFacts shows what the last reading tells of the service and its process.
function drawFacts() {
  if (!latest) return;
  const live = state === "live";
  const last = readings.at(-1);
  const label = (metric) => labelsOf(Object.keys(latest.metrics).find((name) => name.startsWith(`${metric}{`)) ?? "");
  const { engine, node } = label("petstore_engine_info");
  const { version, goversion } = label("petstore_build_info");
  put("fact.engine", { sqlite: "SQLite, one file", rqlite: "rqlite, a cluster" }[engine] ?? engine ?? "–");
  place = [location.host, (node ?? "").split("/").at(-1)].filter(Boolean).join(" · "); // so that two tabs differ
  write($("#place"), place);
  put("fact.place", engine === "sqlite" ? "File" : "Node");
  put("fact.node", node ?? "–");
  put("fact.version", `${version} · ${goversion}`);
  put("fact.environment", latest.environment);
  put("fact.uptime", live ? `${age(latest.uptime)}, since ${instant(started * 1e3)}` : "–");
  put("commit.failed", integer(gauge(last, "petstore_commit_failures_total")));
  put("bans.total", integer(gauge(last, "petstore_bans_total")));
  for (const [name, list] of Object.entries(outcomes)) put(`total.${name}`, integer(sum(list, last)));
  drawData(last, (name) => latest.verdict.reasons?.some(({ alert }) => alert === name));
}

// drawData leaves out what does not apply.
function drawData(last, isWatched) {
  const fact = (name, known, text, bad) => {
    const value = $(`[data-value="fact.${name}"]`);
    value.hidden = value.previousElementSibling.hidden = known === null;
    if (known !== null) tell(`fact.${name}`, text, !bad);
  };
  const number = (name) => latest.metrics[`petstore_${name}`] ?? null;
  const ago = (time) => `${instant(time * 1e3)}, ${age(now() / 1e3 - time)} ago`;
  const [size, log] = ["database", "log"].map((file) => number(`database_bytes{file="${file}"}`));
  const [left, disk] = [number("disk_free_bytes"), number("disk_size_bytes")];
  const backup = number("last_backup_timestamp_seconds");
  const end = number("certificate_expiry_timestamp_seconds");
  const failed = gauge(last, 'petstore_node_requests_total{outcome="failure"}');
  const members = latest.members?.length ? latest.members : null;
  fact("pets", number("pets"), integer(number("pets")));
  fact("size", size, `${bytes(size)}${log === null ? "" : `, and ${bytes(log)} of -wal`}`);
  fact("disk", disk, `${bytes(left)} of ${bytes(disk)} free, ${percent((100 * left) / disk)}`, isWatched("PetstoreDiskFills"));
  fact("backup", number("foreign_keys"), backup === null ? "none known" : ago(backup), isWatched("PetstoreBackupIsOld"));
  $('[data-value="fact.backup"]').classList.toggle("warn", backup === null); // the verdict stays
  fact("certificate", end, `${end < now() / 1e3 ? "ended" : "ends"} ${instant(end * 1e3, true)}`, isWatched("PetstoreOwnCertificateEnds"));
  fact("network", latest.networkDisk || null, `${latest.networkDisk}: may pass no locks on to other machines`, true);
  fact("nodes", failed, `${integer(failed)} failed since start`);
  fact("members", members, members?.map(({ node, state: role }) => `${node} ${role.toLowerCase() || "does not respond"}`).join("\n"));
}

// rows brings the rows of a table's body to those of the cells: texts, or elements; the first is the head.
function rows(body, list) {
  while (body.rows.length > list.length) body.deleteRow(-1);
  list.forEach((cells, i) => {
    const row = body.rows[i] ?? body.insertRow();
    cells.forEach((cell, j) => {
      const place = row.cells[j] ?? row.appendChild(document.createElement(j ? "td" : "th"));
      if (!j) place.scope = "row";
      place.dataset.label = body.parentElement.tHead.rows[0].cells[j].textContent; // which a phone shows beside it
      const parts = [cell].flat();
      const isSame = parts.length === place.childNodes.length && parts.every((part, k) => (
        typeof part === "string" ? place.childNodes[k].data === part : place.childNodes[k].isEqualNode(part)));
      if (!isSame) place.replaceChildren(...parts); // otherwise the focus, and what is selected, stays
    });
  });
}

function drawOperations() {
  const all = across(view.from, framed);
  const order = [...Object.keys(charts), ...[...operations.keys()].sort()]; // those with a chart come first
  const called = ([, of]) => of.requests.length > 0; // since the start; a number begins with the first request
  const list = [...operations].filter(called).sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  const never = [...operations].filter((one) => !called(one)).map(([name]) => name).sort();
  $("#never").hidden = never.length === 0;
  write($("#never summary"), `${never.length} operations were not called since the start`);
  write($("#never p"), never.join(", "));
  rows($("#operations tbody"), list.map(([name, of]) => [name, all ? integer(all.count(of.requests)) : "–", all ? rate(all.rate(of.requests)) : "–",
    ...[0.5, 0.95, 0.99].map((q) => (all ? duration(all.quantile(q, of.buckets)) + (q === 0.99 ? few(all, name) : "") : "–")),
    all ? integer(all.count(of.refused)) : "–", all ? integer(all.count(of.failed)) : "–"]));
  for (const element of $$(".range")) write(element, covered());
  const off = Math.round(Math.abs(ahead) / 1e3);
  write($("#clock"), off ? `, by the service’s clock: this machine’s is ${age(off)} ${ahead > 0 ? "behind" : "ahead"}` : "");
}

// drawBusy tells who calls now, with a key and without, as this service has counted.
function drawBusy() {
  const busy = latest?.busy;
  if (!busy) return;
  const keys = busy.keys ?? [];
  put("busy.count", integer(busy.count));
  rows($("#busy tbody"), keys.map((key) => [key.id ? keyName(key) : "all others", integer(key.admitted), integer(key.refused), integer(key.errors)]));
  $("#busy").parentElement.hidden = !keys.length;
  $("#busy-nothing").hidden = keys.length > 0;
  write($("#busy-nothing"), "No key has called lately.");
  $("#busy-hint").hidden = !latest.members?.length;
  const { admitted: unknown, refused } = busy.strangers;
  const spent = (busy.spent ?? []).filter(({ until }) => Date.parse(until) > now());
  write($("#strangers"), `Without a valid key: ${integer(unknown)} of 401 and ${integer(refused)} of 429. ${spent.length
    ? `Addresses that have used up their minute${spent.length > 9 ? " (the last 10)" : ""}: ${spent.map(({ address, until }) => `${address.replace(/\/32$/, "")} until ${hours(Date.parse(until))}`).join(", ")}.`
    : "No address has used up its minute."}`);

  const all = across(view.from, framed);
  const codes = [...places.keys()].filter((name) => name.startsWith("petstore_errors_total{")).map((name) => (
    [labelsOf(name).code, all ? all.counter(name) : 0, gauge(readings.at(-1), name) ?? 0])).filter(([, , total]) => total > 0);
  codes.sort((a, b) => b[1] - a[1] || b[2] - a[2]);
  rows($("#codes tbody"), codes.map(([code, shown, total]) => [code, integer(shown), integer(total)]));
  $("#codes").hidden = !codes.length;
  $("#codes-nothing").hidden = codes.length > 0;
}

function text(content, value) {
  const span = document.createElement("span");
  span.textContent = content;
  if (value) span.dataset.value = value;
  return span;
}

// Keys: who is banned or near a limit, and who has used how much

let reportShown = 0;

function drawReport() {
  const report = latest?.report;
  if (!report || report.at === reportShown) return;
  reportShown = report.at;
  rows($("#near tbody"), report.nearLimits.map((key) => [keyName(key), standing(key),
    meter(key.usedThisMinute, key.perMinute, Date.parse(key.lastUsedAt) + 60e3), meter(key.usedToday, key.perDay, Date.parse(key.dayEnds)), key.plan]));
  $("#near").parentElement.hidden = !report.nearLimits.length;
  $("#near-nothing").hidden = report.nearLimits.length > 0;
  $("#near-hint").hidden = report.near <= report.nearLimits.length;
  write($("#near-nothing"), "No key is banned, and none has used 80 % of its minute or its day.");

  const used = report.usage.map((key) => ({ ...key, total: totalOf(key.days) })).filter(({ days }) => days.length);
  const most = Math.max(1, ...used.map(({ total }) => total.admitted));
  rows($("#usage tbody"), used.map((key) => [keyName(key), bars(key, report.at),
    [text(integer(key.total.admitted)), share(key.total.admitted / most)], integer(key.total.refused), integer(key.total.errors)]));
  $("#usage").parentElement.hidden = $("#usage-hint").hidden = !used.length;
  $("#usage-nothing").hidden = used.length > 0;
  write($("#usage-nothing"), "No key was used in the last 30 days.");
  for (const element of $$(".as-of")) write(element, `as of ${instant(report.at)}`);
}

const totalOf = (days) => days.reduce((a, b) => ({ admitted: a.admitted + b.admitted, refused: a.refused + b.refused, errors: a.errors + b.errors }),
  { admitted: 0, refused: 0, errors: 0 });

// keyName is a key's name and its id. The bdi keeps the direction of the name from the id.
function keyName({ id, name }) {
  const number = text(`#${id}`);
  number.className = "id";
  const label = document.createElement("bdi");
  label.textContent = name || "(no name)";
  label.className = "name";
  label.tabIndex = 0; // who comes to it sees the whole
  return [label, " ", number];
}

function meter(used, limit, until) {
  const left = text(used >= limit && until ? `nothing left until ${hours(until)}` : "");
  left.className = "left";
  return [text(`${integer(used)} of ${integer(limit)}`), left, share(used / limit, used >= limit)];
}

// share is a bar that is as long as the part, from 0 to 1.
function share(part, full = false) {
  const width = Math.max(0, Math.min(1, part)) * 100;
  return svg("svg", { class: full ? "share full" : "share", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 4 }), svg("rect", { class: "part", width, height: 4 }));
}

function standing({ bannedUntil, usedThisMinute, perMinute, usedToday, perDay }) {
  const [minute, day] = [(100 * usedThisMinute) / perMinute, (100 * usedToday) / perDay];
  const word = bannedUntil ? `banned until ${instant(bannedUntil)}: it went on after 429` : `${Math.min(100, Math.floor(Math.max(minute, day)))} % of its ${day >= minute ? "day" : "minute"}`;
  const badge = text(word);
  badge.className = "badge";
  return badge;
}

// bars are the days of a key, each as high as its part of the busiest of them; refusals are on top.
function bars({ days }, at) {
  const byDay = new Map(days.map((day) => [day.day, day]));
  const most = Math.max(1, ...days.map(({ admitted, refused }) => admitted + refused));
  const drawing = svg("svg", { class: "days", viewBox: "0 0 120 24", role: "img" });
  let busiest = null;
  for (let i = 0; i < 30; i++) {
    const date = new Date(at - (29 - i) * 86400e3).toISOString().slice(0, 10);
    const day = byDay.get(date) ?? { admitted: 0, refused: 0 };
    if (byDay.has(date) && (!busiest || day.admitted > busiest.admitted)) busiest = day;
    const [low, high] = [(22 * day.admitted) / most, (22 * (day.admitted + day.refused)) / most];
    drawing.append(svg("rect", { class: "ground", x: i * 4, y: 23, width: 3, height: 1 }));
    if (high > 0) {
      drawing.append(svg("rect", { class: "refused", x: i * 4, y: 24 - Math.max(high, 1.5), width: 3, height: Math.max(high, 1.5) }));
      drawing.append(svg("rect", { class: "admitted", x: i * 4, y: 24 - Math.max(low, low && 1.5), width: 3, height: Math.max(low, low && 1.5) }));
    }
  }
  drawing.setAttribute("aria-label", busiest ? `${some(days.length, "day")} with requests; most on ${busiest.day}: ${integer(busiest.admitted)} admitted` : "no requests admitted");
  return drawing;
}

// State

let place = location.host; // and the database

function say(next, message) {
  state = next;
  $("#state").dataset.state = next;
  write($("#state"), message);
  drawVerdict();
}

let readyAsked = 0;
let silentAt = 0; // when it was asked first without a response

// askReady asks whether the store can be read and written, now and then: that is a write.
async function askReady() {
  readyAsked = Date.now();
  try {
    const response = await fetch("readyz", { cache: "no-store", signal: AbortSignal.timeout(2000) });
    await response.text();
    silentAt = 0;
  } catch {
    silentAt ||= readyAsked + ahead;
  }
}

let timer = 0;
let reading = false;

// read takes one reading, and comes again a second after it began.
async function read() {
  if (reading) return;
  reading = true;
  clearTimeout(timer);
  const begun = Date.now();
  try {
    const response = await fetch("stats.json", { cache: "no-store", signal: AbortSignal.timeout(2000) });
    if (!response.ok) missed(`The response was ${response.status}`);
    else {
      const read = await response.json();
      const [least, most] = [read.now - Date.now(), read.now - begun]; // its clock was read on the way
      if (ahead < least - 1000 || ahead > most + 1000) ahead = least > 1000 ? least : Math.min(most, 0);
      take(read, now());
      missedAt = 0;
      const since = restarts.length ? `, restarted at ${clock(started * 1e3)}` : "";
      say("live", paused ? "Paused" : `Updating${since}`);
      if (begun - readyAsked > 5000) askReady();
    }
  } catch {
    missed("Not responding");
  }
  reading = false;
  timer = setTimeout(read, Math.max(50, begun + 1000 - Date.now()));
  draw(); // last: an error in it must not end the reading
}

// remember begins with what the service has kept of the last hour. Its clock may be another.
async function remember() {
  try {
    const response = await fetch("history.json", { cache: "no-store", signal: AbortSignal.timeout(2000) });
    const { now: served, places: byName, samples } = await response.json();
    ahead = Math.abs(served - Date.now()) > 1000 ? served - Date.now() : 0;
    const names = Object.entries(byName);
    for (const { time, values } of samples ?? []) {
      const metrics = names.filter(([, i]) => i < values.length).map(([name, i]) => [name, values[i]]);
      const read = { metrics: Object.fromEntries(metrics) };
      read.uptime = time / 1000 - read.metrics.process_start_time_seconds;
      take(read, time - served + now());
    }
  } catch {
    // The charts begin empty, then.
  }
  latest = null; // which is whole with the first reading
}

// missed notes that no reading came: plots do not join what was before and after.
function missed(message) {
  run++;
  missedAt ||= now();
  readyAsked = 0;
  say("away", `${paused ? `Paused; ${message[0].toLowerCase()}${message.slice(1)}` : message} since ${clock(missedAt)}`);
}

// choose shows more or less time up to the moment of the pause, or to now.
function choose(choice) {
  minutes = Number(choice.dataset.minutes);
  chosen = null;
  for (const button of $$("[data-minutes]")) button.ariaPressed = String(button === choice);
  frame(framed);
  drawOperations();
  draw();
}

for (const button of $$("[data-minutes]")) button.addEventListener("click", () => choose(button));
$("#pause").addEventListener("click", ({ currentTarget }) => {
  paused = !paused;
  currentTarget.ariaPressed = String(paused);
  draw();
});
$("#moment").addEventListener("input", ({ target }) => {
  chosen = Number(target.value) === columns - 1 ? null : Number(target.value);
  draw();
});

// pointAt shows the numbers of the column under the pointer, or as before.
function pointAt(column) {
  if (column === pointed) return;
  pointed = column;
  draw();
}
for (const box of $$("[data-chart]")) {
  box.addEventListener("pointermove", ({ clientX }) => {
    const { left, width } = box.getBoundingClientRect();
    pointAt(Math.max(0, Math.min(columns - 1, Math.floor(((clientX - left - gutter) / (width - gutter)) * columns))));
  });
  box.addEventListener("pointerleave", () => pointAt(null));
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) read();
});
addEventListener("resize", draw);
draw();
remember().then(read);
