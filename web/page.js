// The page's script. It calls the service as any client would, with fetch, and
// shows what went over the wire.
//
// Everything that comes from the service or its user reaches the page as text
// (textContent), never as HTML. The key is kept in the tab's session storage and
// sent in Authorization only: it is never part of an address or of a curl line.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => root.querySelectorAll(selector);

// The address is relative to the page's, so that a prefix in front of both fits.
const pets = new URL("v1/pets", document.baseURI).href;

// Session storage. Other services of the same origin have other names in it. A
// browser that forbids it throws; then the key lives as long as the page.
const storage = {
  name: (what) => `${what} ${pets}`,
  get(what) {
    try {
      return sessionStorage.getItem(this.name(what)) ?? "";
    } catch {
      return "";
    }
  },
  set(what, value) {
    try {
      sessionStorage.setItem(this.name(what), value);
    } catch {
      // It is not kept, then.
    }
  },
};

let key = storage.get("key");
let pausedUntil = Number(storage.get("pausedUntil")); // nothing is sent before; milliseconds
let busy = false; // a request is under way
let gauges = []; // what tick counts down

// Text

// parse reads JSON with its numbers as text: an id of 64 bits does not fit a
// JavaScript number.
function parse(json) {
  return JSON.parse(json.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (token) => (token[0] === '"' ? token : `"${token}"`)));
}

// folded puts each pet on a line of its own, and changes nothing else.
function folded(json) {
  return json.replace(/"(?:[^"\\]|\\.)*"|},{/g, (token) => (token === "},{" ? "},\n {" : token));
}

// duration names the two largest units: 8 h 23 min.
function duration(seconds) {
  const units = { d: seconds / 86400, h: (seconds / 3600) % 24, min: (seconds / 60) % 60, s: seconds % 60 };
  const parts = Object.entries(units).map(([unit, n]) => [Math.floor(n), unit]).filter(([n]) => n > 0);
  return parts.slice(0, 2).map((part) => part.join(" ")).join(" ");
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`; // for a POSIX shell

function curl({ method = "GET", url, headers = {}, body }, withKey) {
  const words = ["curl -i"];
  if (withKey) words.push('-H "Authorization: Bearer $KEY"');
  for (const [name, value] of Object.entries(headers)) words.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (method === "POST") words.push(`-d ${quoted(body)}`);
  words.push(quoted(url));
  return words.join(" \\\n  ");
}

// write leaves alone what is there already, and with it what somebody has selected.
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function show(element, text, isError = false) {
  write(element, text);
  element.classList.toggle("bad", isError);
}

const say = (text) => write($("#said"), text); // to a screen reader

// Fields and their errors

function clearErrors(form) {
  for (const input of $$("[aria-invalid]", form)) complain(input, "");
}

function complain(input, problem) {
  $(`#${input.id}-error`).textContent = problem;
  if (problem) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
}

// refuse puts the service's message where it belongs: "name: must not be blank;
// categoryId: is required" beside these fields, anything else below the form.
function refuse(form, outcome, error) {
  const elsewhere = [];
  for (const part of error.code === "invalid_body" ? error.message.split("; ") : [error.message]) {
    const [, field, problem] = part.match(/^(\w+): (.*)$/s) ?? [];
    const input = field && form.elements.namedItem(field);
    if (input) complain(input, problem);
    else elsewhere.push(part);
  }
  const first = $("[aria-invalid]", form);
  show(outcome, elsewhere.join("; ") || "Not added: see the fields above.", true);
  first?.focus();
}

// Limits

// parameters reads a header such as "minute";r=59;t=42, "day";r=940;t=30211.
function parameters(header) {
  const items = {};
  for (const [, name, rest] of (header ?? "").matchAll(/"([^"]*)"([^,]*)/g)) {
    items[name] = Object.fromEntries([...rest.matchAll(/;(\w+)=(\d+)/g)].map(([, k, v]) => [k, Number(v)]));
  }
  return items;
}

// showLimits makes a gauge for every limit that the response reports: minute and
// day of a key, or the one of an address.
function showLimits(headers) {
  const policies = parameters(headers.get("RateLimit-Policy"));
  const limits = parameters(headers.get("RateLimit"));
  const names = Object.keys(limits).filter((name) => name in policies);
  if (names.length === 0) return;
  gauges = names.map((name) => {
    const element = $("#gauge").content.cloneNode(true).firstElementChild;
    $(".name", element).textContent = name[0].toUpperCase() + name.slice(1);
    $(".meter", element).setAttribute("aria-label", `Requests left, ${name}`);
    $(".meter", element).setAttribute("aria-valuemax", policies[name].q);
    return { element, size: policies[name].q, left: limits[name].r, whole: Date.now() + limits[name].t * 1000 };
  });
  $("#gauges").replaceChildren(...gauges.map(({ element }) => element));
  $("#limits-note").hidden = !names.includes("address");
}

function drawGauge({ element, size, left, whole }) {
  const seconds = Math.ceil((whole - Date.now()) / 1000);
  if (seconds <= 0) left = size; // the window has ended
  const amount = `${left.toLocaleString("en")} of ${size.toLocaleString("en")} left`;
  const reset = left < size ? `whole again in ${duration(seconds)}` : "whole";
  write($(".left", element), amount);
  write($(".reset", element), reset);
  const meter = $(".meter", element);
  meter.setAttribute("aria-valuenow", left);
  meter.setAttribute("aria-valuetext", `${amount}, ${reset}`);
  meter.firstElementChild.style.width = `${(100 * left) / size}%`;
  element.classList.toggle("low", left > 0 && left <= size / 5);
  element.classList.toggle("empty", left === 0);
}

// pause keeps the page from sending for as long as the service asks. To insist
// would get the key banned, and so would reloading the page: it is remembered.
function pause(seconds) {
  pausedUntil = seconds && Date.now() + seconds * 1000;
  storage.set("pausedUntil", pausedUntil);
}

const pauseLeft = () => Math.max(0, Math.ceil((pausedUntil - Date.now()) / 1000));

// tick draws what depends on the time. Buttons are not disabled but only say
// so, since a disabled one would lose the focus.
function tick() {
  gauges.forEach(drawGauge);
  const seconds = pauseLeft();
  if (pausedUntil && seconds === 0) {
    pausedUntil = 0;
    say("You can send again.");
  }
  $("#pause").hidden = seconds === 0;
  write($("#pause"), `The service asked to wait. You can send again in ${duration(seconds)}.`);
  for (const button of $$("button.send")) {
    button.setAttribute("aria-disabled", seconds > 0 || button.matches(".nowhere"));
    button.dataset.wait = seconds > 0 ? `wait ${duration(seconds)}` : "";
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.send");
  if (button && (busy || button.getAttribute("aria-disabled") === "true")) {
    event.preventDefault();
    event.stopPropagation();
  }
}, true);

// Exchanges

// newExchange adds the pane that shows a section's request and response.
function newExchange(section) {
  const pane = $("#exchange").content.cloneNode(true).firstElementChild;
  const title = $("h2", section);
  const line = $(".curl", pane);
  const heading = $(".title", pane);
  const status = $(".status", pane);
  const answer = $(".answer", pane);
  line.setAttribute("aria-label", `Request: ${title.textContent}`);
  answer.setAttribute("aria-label", `Response: ${title.textContent}`);
  $(".copy", pane).setAttribute("aria-describedby", title.id);
  section.append(pane);

  function showAnswer(headers, body, code, ok) {
    heading.textContent = "Response";
    $(".headers", answer).textContent = headers;
    $(".body", answer).textContent = body;
    answer.scrollTop = 0;
    show(status, code, !ok);
  }

  return {
    // preview shows the request that would be sent now.
    preview(request) {
      write(line, curl(request, true));
      if (status.textContent) heading.textContent = "Response to the one before";
    },

    // send returns the response with its value or, when it is no success, with an
    // error that has a message to show.
    async send(request) {
      write(line, curl(request, key !== ""));
      show(status, "…");
      busy = true;
      try {
        const answer = await call(request);
        const lines = [...answer.headers].map(([name, value]) => `${name}: ${value}`);
        showAnswer(`${lines.join("\n")}\n\n`, folded(answer.text), answer.line, answer.ok);
        showLimits(answer.headers);
        heed(answer);
        return answer;
      } catch (reason) {
        showAnswer(String(reason), "", "No response", false);
        return { error: { message: "No response came: the service cannot be reached." } };
      } finally {
        busy = false;
        tick();
      }
    },
  };
}

async function call({ method = "GET", url, headers = {}, body }) {
  const response = await fetch(url, {
    method,
    body,
    headers: key ? { ...headers, Authorization: `Bearer ${key}` } : headers,
    cache: "no-store",
    redirect: "error",
    signal: AbortSignal.timeout(40_000),
  });
  const text = await response.text();
  const line = `${response.status} ${response.statusText}`.trim();
  const answer = { status: response.status, ok: response.ok, headers: response.headers, url: response.url, line, text };
  try {
    answer[response.ok ? "value" : "error"] = parse(text);
  } catch { // no JSON: it is a proxy's, say
    answer.error = { message: `The response was ${line}, and not the service’s own.` };
  }
  return answer;
}

// heed does what a refusal asks for: to wait, or to give another key.
function heed({ status, headers, error }) {
  const seconds = Number(headers.get("Retry-After"));
  if (seconds > 0) pause(seconds);
  if (status === 401) {
    storage.set("key", ""); // a reload need not try it again
    complain($("#key"), error.message);
    $("#key").focus();
  }
}

// Copying

document.addEventListener("click", async ({ target }) => {
  if (!target.matches(".copy")) return;
  const line = $(".curl", target.closest(".exchange"));
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(line.textContent);
  } catch { // browsers have a clipboard for https and localhost only
    getSelection().selectAllChildren(line);
    done = "Selected";
  }
  say(done);
  target.textContent = done;
  setTimeout(() => (target.textContent = "Copy"), 2000);
});

// The list

function setUpList() {
  const section = $("#list");
  const outcome = $(".outcome", section);
  const exchange = newExchange(section);
  const chosen = { status: "", limit: "20" };
  let visited = []; // the query strings of the pages up to this one
  let next = ""; // that of the next page, if there is one

  const query = ({ status, limit }) => {
    const q = new URLSearchParams();
    if (limit !== "20") q.set("limit", limit);
    if (status) q.set("status", status);
    return String(q) && `?${q}`;
  };

  async function load(pages, choice = chosen) {
    const asked = key;
    const answer = await exchange.send({ url: pets + pages.at(-1) });
    if (key !== asked) return; // another key was given meanwhile, and its list is on the way
    if (answer.error) {
      show(outcome, answer.error.message, true);
      return;
    }
    visited = pages;
    next = nextPage(answer);
    Object.assign(chosen, choice);
    draw(answer.value);
  }

  function summary(count) {
    const which = chosen.status && ` ${chosen.status}`;
    if (count === 0) return `There are no${which} pets.`;
    const page = next || visited.length > 1 ? `Page ${visited.length}: ` : "";
    return `${page}${count}${which} ${count === 1 ? "pet" : "pets"}${next ? ", and there are more" : ""}.`;
  }

  function draw(animals) {
    show(outcome, summary(animals.length));
    $("tbody", section).replaceChildren(...animals.map(row));
    $(".table", section).hidden = animals.length === 0;
    for (const button of $$("[data-status]", section)) button.setAttribute("aria-pressed", button.dataset.status === chosen.status);
    for (const button of $$("[data-limit]", section)) button.setAttribute("aria-pressed", button.dataset.limit === chosen.limit);
    $(".pages", section).hidden = !next && visited.length < 2;
    $("#page-number").textContent = `Page ${visited.length}`;
    $("#previous").classList.toggle("nowhere", visited.length < 2);
    $("#next").classList.toggle("nowhere", !next);
    tick();
  }

  for (const button of $$("[data-status], [data-limit]", section)) {
    button.addEventListener("click", () => {
      const { status = chosen.status, limit = chosen.limit } = button.dataset;
      load([query({ status, limit })], { status, limit });
    });
  }
  $("#next").addEventListener("click", () => load([...visited, next]));
  $("#previous").addEventListener("click", () => load(visited.slice(0, -1)));
  exchange.preview({ url: pets });

  return {
    first: () => load([query(chosen)]),
    // A new pet comes at the end of the list. It is fetched if it can be seen.
    added({ status }) {
      if (visited.length > 0 && !next && ["", status].includes(chosen.status)) load(visited);
    },
  };
}

// nextPage is the query string of the Link with rel="next". Its address may be
// another origin's, when the service is told a public one: only the query counts.
function nextPage({ headers, url }) {
  const link = (headers.get("Link") ?? "").match(/<([^>]*)>[^,]*;\s*rel="?next\b/);
  return link ? new URL(link[1], url).search : "";
}

function row({ id, name, categoryId, status }) {
  const tr = document.createElement("tr");
  const cell = (tag, text, className) => {
    const td = document.createElement("td");
    const inner = document.createElement(tag);
    inner.textContent = text;
    inner.className = className;
    td.append(inner);
    tr.append(td);
  };
  cell("span", id, "number");
  cell("bdi", name, "animal"); // whatever its direction, it leaves the row's alone
  cell("span", categoryId, "number");
  cell("span", status, `badge ${status}`);
  return tr;
}

// Adding

function setUpAdd(list) {
  const section = $("#add");
  const form = $("form", section);
  const outcome = $(".outcome", section);
  const exchange = newExchange(section);
  let sent = ""; // the last body that may have been stored
  let idempotencyKey = random();

  // The category's digits go into the body as they are: 64 bits do not fit a
  // JavaScript number. What is no integer is sent as text, for the service to judge.
  function request() {
    const { name, categoryId: digits, status } = Object.fromEntries(new FormData(form));
    const categoryId = digits.trim();
    const members = [`"name":${JSON.stringify(name)}`];
    if (categoryId) members.push(`"categoryId":${/^-?(0|[1-9]\d*)$/.test(categoryId) ? categoryId : JSON.stringify(categoryId)}`);
    if (status) members.push(`"status":${JSON.stringify(status)}`);
    const body = `{${members.join(",")}}`;
    if (sent && sent !== body) {
      idempotencyKey = random();
      sent = "";
    }
    return { method: "POST", url: pets, headers: { "Content-Type": "application/json", "Idempotency-Key": idempotencyKey }, body };
  }

  form.addEventListener("input", () => exchange.preview(request()));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearErrors(form);
    show(outcome, "");
    const r = request();
    sent = r.body;
    const answer = await exchange.send(r);
    if (answer.error) {
      refuse(form, outcome, answer.error);
      return;
    }
    sent = "";
    idempotencyKey = random();
    form.reset();
    show(outcome, `Added ${answer.value.name} with the id ${answer.value.id}.`);
    list.added(answer.value);
  });
  exchange.preview({ ...request(), body: '{"name":"Rex","categoryId":7}' });
}

function random() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Fetching one

function setUpFetch() {
  const section = $("#fetch");
  const form = $("form", section);
  const input = $("#petId");
  const outcome = $(".outcome", section);
  const exchange = newExchange(section);
  const request = () => ({ url: `${pets}/${encodeURIComponent(input.value.trim())}` });

  form.addEventListener("input", () => exchange.preview(request()));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearErrors(form);
    show(outcome, "");
    const answer = await exchange.send(request());
    if (answer.status === 404) {
      complain(input, answer.error.message);
      input.focus();
    } else if (answer.error) {
      show(outcome, answer.error.message, true);
    } else {
      const { name, categoryId, status } = answer.value;
      show(outcome, `${name}, category ${categoryId}, ${status}.`);
    }
  });
  exchange.preview(request());
}

// The key

function setUpKey(list) {
  const form = $("#key-form");
  const input = $("#key");
  input.value = key;
  $("#forget").hidden = key === "";

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearErrors(form);
    const typed = input.value.trim();
    if (/[^!-~]/.test(typed)) {
      complain(input, "A key has no spaces, and only letters, digits and underscores.");
      input.focus();
      return;
    }
    if (typed !== key) pause(0); // another key has limits of its own
    key = typed;
    storage.set("key", key);
    $("#forget").hidden = key === "";
    if (pauseLeft() > 0) say($("#pause").textContent);
    else list.first();
  });

  // A new page knows nothing of what the key has shown.
  $("#forget").addEventListener("click", () => {
    storage.set("key", "");
    storage.set("pausedUntil", "");
    input.value = "";
    location.reload();
  });
}

$("#first-call").textContent = `KEY=pet_live_…\n${curl({ url: pets }, true)}`;
for (const element of $$("#here, #try, .copy")) element.hidden = false;
const list = setUpList();
setUpAdd(list);
setUpFetch();
setUpKey(list);
tick();
setInterval(tick, 500);
if (key && pauseLeft() === 0) list.first();
