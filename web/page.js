// The page's script. It calls the service as any client would, with fetch, and
// shows what went over the wire, and the same request in several languages.
//
// Everything that comes from the service or its user reaches the page as text
// (textContent), never as HTML. The key is kept in the tab's session storage and
// sent in Authorization only: it is never part of an address or of a sample.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => root.querySelectorAll(selector);

const staging = document.body.dataset.environment === "Staging";
const prefix = staging ? "pet_test_" : "pet_live_"; // of the keys that this service takes
if (staging) $("#key").placeholder = `${prefix}…`;

// The address is relative to the page's, so that a prefix in front of both fits.
const pets = new URL("v1/pets", document.baseURI).href;

// What is remembered. Other services of the same origin have other names in it. A
// browser that forbids it throws; then it is remembered as long as the page lives.
const memory = (kind) => ({
  get(what) {
    try {
      return window[kind].getItem(`${what} ${pets}`) ?? "";
    } catch {
      return "";
    }
  },
  set(what, value) {
    try {
      window[kind].setItem(`${what} ${pets}`, value);
    } catch {
      // It is not kept, then.
    }
  },
});
const tab = memory("sessionStorage"); // the key, until the tab is closed
const browser = memory("localStorage"); // the language of the samples, and nothing else

for (const base of $$(".base code")) base.textContent = pets.replace(/\/pets$/, "");

let key = tab.get("key");
let pausedUntil = Number(tab.get("pausedUntil")); // nothing is sent before; milliseconds
let gauges = []; // what tick counts down
const waiting = new Map(); // elements that show a refusal, and in them the time that is left, which tick counts down too

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

// colour shows JSON with its kinds of values told apart. The text stays as it is. A string may be
// a name, and run from right to left: as a bdi it leaves the numbers beside it alone.
function colour(element, json) {
  const parts = json.matchAll(/("(?:[^"\\]|\\.)*")(?=(\s*:)?)|-?\d[\d.eE+-]*|true|false|null|[^"\dtfn-]+|./gs);
  element.replaceChildren(...[...parts].map(([text, string, colon]) => {
    if (/^[^"\dtfn-]/.test(text)) return text;
    const kind = string ? (colon ? "member" : "string") : "value";
    const part = document.createElement(kind === "string" ? "bdi" : "span");
    part.className = kind;
    part.textContent = text;
    return part;
  }));
}

// duration names the two largest units: 8 h 23 min.
function duration(seconds) {
  const units = { d: seconds / 86400, h: (seconds / 3600) % 24, min: (seconds / 60) % 60, s: seconds % 60 };
  const parts = Object.entries(units).map(([unit, n]) => [Math.floor(n), unit]).filter(([n]) => n > 0);
  return parts.slice(0, 2).map((part) => part.join(" ")).join(" ");
}

// write leaves alone what is there already, and with it what somebody has selected.
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function show(element, text, isError = false) {
  waiting.delete(element);
  element.classList.remove("over");
  write(element, text);
  element.classList.toggle("bad", isError);
}

// showPet shows what has become of a pet. Its name stands in a bdi: whatever the direction of the
// name, it leaves the rest alone.
function showPet(element, before, name, after) {
  show(element, "");
  const named = document.createElement("bdi");
  named.textContent = name;
  element.append(before, named, after);
}

// refused shows why a request has failed. If it is to be sent again later, the message goes on
// telling when, to eyes only: a screen reader hears it once.
function refused(element, { message }) {
  show(element, message, true);
  const [, before, wait, after] = message.match(/^(.*retry in )(\d+ s)(.*)$/s) ?? [];
  if (wait && pauseLeft() > 0) {
    const [heard, seen] = [document.createElement("span"), document.createElement("span")];
    heard.className = "unseen";
    heard.textContent = wait;
    seen.ariaHidden = "true";
    element.replaceChildren(before, heard, seen, after);
    waiting.set(element, seen);
  }
  tick();
}

// say tells a screen reader something, also what it was told last: then it needs another text.
const say = (text) => ($("#said").textContent = $("#said").textContent === text ? `${text}\u00a0` : text);

// Requests in several languages

// json writes a string as JSON, with what cannot be seen as escapes, since it
// could make a sample read otherwise than it runs.
function json(text) {
  return JSON.stringify(text).replace(/[\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`; // for a POSIX shell
const single = (text) => `'${text.replace(/[\\']/g, "\\$&")}'`; // for Python and JavaScript
const raw = (text) => (text.includes("`") ? JSON.stringify(text) : `\`${text}\``); // for Go

const languages = {
  curl({ headers, body, url, first }) {
    const words = [`${first ? `export KEY=${prefix}…\n` : ""}curl -i`, '-H "Authorization: Bearer $KEY"', ...headers.map((header) => `-H ${quoted(header.join(": "))}`)];
    if (body) words.push(`-d ${quoted(body)}`);
    return [...words, quoted(url)].join(" \\\n  ");
  },

  Python({ headers, body, url }) {
    return `# python3 pets.py
import os, urllib.error, urllib.request

request = urllib.request.Request(
    ${json(url)},
    headers={
        "Authorization": "Bearer " + os.environ["KEY"],
${headers.map((header) => `        ${header.map(json).join(": ")},\n`).join("")}    },
${body ? `    data=${single(body)}.encode(),\n` : ""})
try:
    response = urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    response = error
print(response.status, response.read().decode())`;
  },

  JavaScript({ method, headers, body, url }) {
    return `// node pets.mjs
const response = await fetch(${json(url)}, {
${body ? `  method: "${method}",\n` : ""}  headers: {
    Authorization: \`Bearer \${process.env.KEY}\`,
${headers.map((header) => `    ${header.map(json).join(": ")},\n`).join("")}  },
${body ? `  body: ${single(body)},\n` : ""}});
console.log(response.status, await response.text());`;
  },

  Go({ method, headers, body, url }) {
    return `// go run pets.go

package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
${body ? '\t"strings"\n' : ""})

func main() {
	request, err := http.NewRequest("${method}", ${json(url)}, ${body ? `strings.NewReader(${raw(body)})` : "nil"})
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("KEY"))
${headers.map((header) => `	request.Header.Set(${header.map(json).join(", ")})\n`).join("")}	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
	io.Copy(os.Stdout, response.Body)
}`;
  },
};

let language = browser.get("language");
if (!Object.hasOwn(languages, language)) language = "curl";
const samples = []; // the panes that show a request

// newSample makes the pane of a request, with a tab for each language, and
// returns what shows another request in it.
function newSample(pane) {
  const code = $(".code", pane);
  const tabs = document.createElement("div");
  let request;
  tabs.className = "tabs";
  tabs.setAttribute("role", "tablist");
  tabs.setAttribute("aria-label", "Language");
  for (const name of Object.keys(languages)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.id = `${code.id}-${name}`;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", code.id);
    button.addEventListener("click", () => choose(name, button));
    tabs.append(button);
  }
  tabs.addEventListener("keydown", (event) => {
    const names = Object.keys(languages);
    const at = names.indexOf(language);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const button = tabs.children[(to + names.length) % names.length];
    choose(button.textContent, button);
    button.focus();
  });
  $(".request h3", pane).className = "unseen";
  $(".request", pane).prepend(tabs);
  code.setAttribute("role", "tabpanel");

  function draw() {
    // The first line of a program says how it is run.
    const run = languages[language](request).match(/^(?:#|\/\/) (.* (.*))\n/);
    if (request.first) {
      write($("#start-how"), run ? `Save this as ${run[2]} and, in a terminal, run KEY=${prefix}… ${run[1]}, with your key:`
        : "In a terminal, with your key in the first line:");
    }
    for (const button of tabs.children) {
      const chosen = button.textContent === language;
      button.setAttribute("aria-selected", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
    write(code, languages[language](request));
  }
  samples.push(draw);
  return ({ method = "GET", url, headers = {}, body, first }) => {
    request = { method, url, headers: Object.entries(headers), body, first };
    draw();
  };
}

// choose shows all samples in a language. The others change their height too:
// what was clicked stays where it was on the screen.
function choose(name, clicked) {
  const before = clicked.getBoundingClientRect().top;
  language = name;
  browser.set("language", name);
  for (const draw of samples) draw();
  scrollBy({ top: clicked.getBoundingClientRect().top - before, behavior: "instant" });
}

// Fields and their errors

function clearErrors(form) {
  for (const input of $$("[aria-invalid]", form)) complain(input, "");
}

function complain(input, problem) {
  show($(`#${input.id}-error`), problem);
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
  refused(outcome, { message: elsewhere.join("; ") || "Not added: see the fields above." });
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
// day of a key, or the one of an address. Its clock begins when the response came,
// as that of a pause does: they always agree.
function showLimits({ headers, came }) {
  const policies = parameters(headers.get("RateLimit-Policy"));
  const limits = parameters(headers.get("RateLimit"));
  const names = Object.keys(limits).filter((name) => name in policies);
  if (names.length === 0) return;
  gauges = names.map((name) => {
    const element = $("#gauge").content.cloneNode(true).firstElementChild;
    $(".name", element).textContent = name[0].toUpperCase() + name.slice(1);
    $(".meter", element).setAttribute("aria-label", `Requests left, ${name}`);
    $(".meter", element).setAttribute("aria-valuemax", policies[name].q);
    return { element, size: policies[name].q, left: limits[name].r, resets: came + limits[name].t * 1000 };
  });
  $("#gauges").replaceChildren(...gauges.map(({ element }) => element));
  $(".limits").hidden = false;
}

// amountOf is a number with all its digits or, from a million on, the first ones: 2.5M.
const amountOf = (n) => n.toLocaleString("en", n < 1e6 ? {} : { notation: "compact", maximumFractionDigits: 1 });

function drawGauge({ element, size, left, resets }, now) {
  const seconds = Math.ceil((resets - now) / 1000);
  if (seconds <= 0) left = size; // the window has ended
  const amount = `${amountOf(left)} of ${amountOf(size)} left`;
  const reset = left < size ? `resets in ${duration(seconds)}` : "full";
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
function pause(until) {
  pausedUntil = until;
  tab.set("pausedUntil", until);
}

const pauseLeft = (now = Date.now()) => Math.max(0, Math.ceil((pausedUntil - now) / 1000));
const notSent = () => ({ message: `Not sent: the service asked to wait; retry in ${pauseLeft()} s` });

// tick draws what depends on the time, all of it at one instant. Buttons are not
// disabled but only say so, since a disabled one would lose the focus.
function tick() {
  const now = Date.now();
  const seconds = pauseLeft(now);
  for (const gauge of gauges) drawGauge(gauge, now);
  if (seconds === 0) {
    if (pausedUntil) say("You can send again.");
    pausedUntil = 0;
    for (const element of waiting.keys()) element.classList.add("over"); // its line stays, so that nothing moves
    waiting.clear();
  }
  for (const seen of waiting.values()) write(seen, duration(seconds));
  for (const button of $$("button.send")) button.setAttribute("aria-disabled", seconds > 0 || button.matches(".nowhere"));
  $("#key-form .primary").setAttribute("aria-disabled", seconds > 0 && $("#key").value === key); // another key need not wait
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.send");
  if (button?.getAttribute("aria-disabled") !== "true") return;
  event.preventDefault();
  event.stopPropagation();
  stillWaiting($(".outcome", button.closest(".controls")));
}, true);

// stillWaiting tells beside the button how long it waits, unless that is there already.
function stillWaiting(element) {
  if (pauseLeft() > 0 && !waiting.has(element)) refused(element, notSent());
}

// Exchanges

// spelt is the name of a header as the table below has it: browsers tell names in small letters.
const spellings = new Map([...$$("#headers th code")].map(({ textContent: name }) => [name.toLowerCase(), name]));
const spelt = (name) => spellings.get(name) ?? name.replace(/(^|-)[a-z]/g, (letter) => letter.toUpperCase());

// newExchange makes the pane of a section, with its request and response.
function newExchange(section) {
  const pane = $(".exchange", section);
  const sample = newSample(pane);
  const heading = $(".title", pane);
  const status = $(".status", pane);
  const answer = $(".answer", pane);
  let sent = false;
  let turn = 0; // the number of the last request
  let running = null; // what ends it
  colour($(".body", answer), $(".body", answer).textContent);

  function showAnswer(headers, body, isJSON, line, ok) {
    heading.textContent = "Response";
    $(".headers", answer).textContent = headers;
    if (isJSON) colour($(".body", answer), folded(body));
    else $(".body", answer).textContent = body;
    answer.scrollTo(0, 0); // a phone may have scrolled in the one before
    show(status, line, !ok);
    sent = true;
  }

  return {
    isLoading: () => pane.ariaBusy === "true",

    // preview shows the request that would be sent now.
    preview(request) {
      sample(request);
      if (!this.isLoading()) heading.textContent = sent ? "Previous response" : "Sample response";
    },

    // send returns the response with its value or, when it is no success, with an
    // error that has a message to show. Without a key, and while the service has
    // asked to wait, it sends nothing. A request gives way to the next one of its pane: what comes
    // late is stale, and changes nothing. What comes for a key that is used no more says nothing of
    // the one that is.
    async send(request) {
      const mine = ++turn;
      const usedKey = key;
      running?.abort();
      pane.removeAttribute("aria-busy");
      this.preview(request);
      if (pauseLeft() > 0) return { error: notSent() };
      if (key === "") {
        askForKey();
        return { error: { message: "Not sent: it needs a key." } };
      }
      running = new AbortController();
      heading.textContent = "Loading";
      pane.setAttribute("aria-busy", true);
      const answer = await call(request, running.signal).catch((reason) => ({ reason }));
      if (mine !== turn) return { stale: true };
      pane.removeAttribute("aria-busy");
      if (usedKey !== key && !request.body) { // what was created is told
        this.preview(request);
        return { error: { message: "Not shown: it came for the key before." } };
      }
      if (answer.reason) {
        showAnswer(String(answer.reason), "", false, "No response", false);
        tick();
        return { error: { message: "No response came: the service cannot be reached." } };
      }
      const lines = [...answer.headers].map(([name, value]) => `${spelt(name)}: ${value}\n`);
      showAnswer(`${lines.join("")}\n`, answer.text, answer.isJSON, answer.line, answer.ok);
      if (usedKey === key) {
        showLimits(answer);
        heed(answer);
      }
      tick();
      return answer;
    },
  };
}

// call sends a request. Of a response that is not the service's own, such as a proxy's, it makes an error.
async function call({ method = "GET", url, headers = {}, body, isOwn }, ended) {
  const response = await fetch(url, {
    method,
    body,
    headers: { ...headers, Authorization: `Bearer ${key}` },
    cache: "no-store",
    redirect: "error",
    signal: AbortSignal.any([ended, AbortSignal.timeout(40_000)]),
  });
  const came = Date.now();
  const text = await response.text();
  const line = `${response.status} ${response.statusText}`.trim();
  const answer = { status: response.status, ok: response.ok, headers: response.headers, url: response.url, line, text, came };
  let value = null;
  try {
    value = parse(text);
    answer.isJSON = true;
  } catch {
    // It is shown as it is.
  }
  if (response.ok && isOwn(value)) answer.value = value;
  else if (!response.ok && value?.code && value.message) answer.error = value;
  else answer.error = { message: `The response was ${line}, and not the service’s own.` };
  return answer;
}

const isPet = (value) => typeof value?.name === "string" && /^\d+$/.test(value.id);
const arePets = (value) => Array.isArray(value) && value.every(isPet);

// heed does what a refusal asks for: to wait, or to give another key.
function heed({ status, headers, error, came }) {
  const seconds = Number(headers.get("Retry-After"));
  if (seconds > 0) pause(came + seconds * 1000);
  if (status === 401 && error.code) {
    tab.set("key", ""); // a reload need not try it again
    $("#key-note").textContent = "";
    complain($("#key"), `${error.message}. Requests without a valid key count for your network address.`);
    $("#key").focus();
  }
}

// Copying

document.addEventListener("click", async ({ target }) => {
  if (!target.matches(".copy")) return;
  const code = $(target.dataset.copies, target.closest(".base, section"));
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // browsers have a clipboard for https and localhost only
    getSelection().selectAllChildren(code);
    done = "Selected";
  }
  say(done);
  target.firstChild.data = done;
  setTimeout(() => (target.firstChild.data = "Copy"), 2000);
});

// The list
//
// Where the list is stands in the page's address, so that Back, a reload and a
// bookmark work: ?status=sold&limit=5&page=3&after=20,41. The last number of after
// is the id that the page begins after; those before it are where the pages before
// begin. The page is 0 if nobody knows its number.

const mostSteps = 50; // that the address remembers

function placeOf(search) {
  const given = new URLSearchParams(search);
  const valid = (name, pattern, otherwise) => (pattern.test(given.get(name)) ? given.get(name) : otherwise);
  const after = valid("after", /^\d{1,19}(,\d{1,19})*$/, "");
  const steps = after ? after.split(",").slice(-mostSteps) : [];
  return {
    status: valid("status", /^(available|pending|sold)$/, ""),
    limit: valid("limit", /^(5|20|100)$/, "20"),
    page: steps.length ? Number(valid("page", /^\d{1,9}$/, steps.length + 1)) : 1,
    steps,
  };
}

const inQuery = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return given.length ? `?${given.map((pair) => pair.join("=")).join("&")}` : "";
};
const size = ({ limit }) => limit !== "20" && limit;
const searchOf = (place) => inQuery({
  status: place.status, limit: size(place), page: place.steps.length && String(place.page), after: place.steps.join(","),
});
const urlOf = (place) => pets + inQuery({ limit: size(place), status: place.status, after: place.steps.at(-1) });

const first = (place) => ({ ...place, page: 1, steps: [] });
const following = (place, after) => ({ ...place, page: place.page && place.page + 1, steps: [...place.steps, after].slice(-mostSteps) });
const isBeforeKnown = ({ page, steps }) => steps.length > 1 || page === 2;
const before = (place) => (place.steps.length > 1 ? { ...place, page: place.page && place.page - 1, steps: place.steps.slice(0, -1) } : first(place));

function setUpList() {
  const section = $("#list");
  const outcome = $(".outcome", section);
  const box = $(".table", section);
  const exchange = newExchange(section);
  // What comes moves nothing: the place that it took last is kept free.
  const filled = [box, $(".answer", section)];
  if (key) filled.forEach((part, i) => (part.style.minHeight = tab.get(`height ${i}`)));
  let place = placeOf(location.search); // that of the request
  let next = ""; // the id that the next page begins after, if there is one
  let rows = -1; // shown now; -1 if the request of the place has no answer

  // go shows another place, which becomes an entry of the browser's history.
  function go(to, more) {
    if (searchOf(to) !== searchOf(place)) history.pushState(null, "", searchOf(to) || location.pathname);
    return load(to, more);
  }

  // load asks for the pets of a place. What it shows as chosen is in the request,
  // whatever comes back.
  async function load(to, { added, greeting = "" } = {}) {
    place = to;
    rows = -1;
    next = "";
    drawChoice();
    box.setAttribute("aria-busy", true);
    const asked = exchange.send({ url: urlOf(place), isOwn: arePets });
    if (exchange.isLoading()) show(outcome, "Loading …");
    const answer = await asked;
    if (answer.stale) return answer; // it was asked for another place meanwhile, or with another key
    box.removeAttribute("aria-busy");
    if (answer.error) {
      refused(outcome, answer.error);
      draw([], "Nothing to show");
    } else {
      rows = answer.value.length;
      next = nextAfter(answer);
      show(outcome, greeting + summary(rows));
      draw(answer.value, "There is nothing here.", added);
    }
    return answer;
  }

  function summary(count) {
    const which = place.status && ` ${place.status}`;
    if (count === 0 && place.page === 1) return `There are no${which} pets.`;
    const page = place.page === 0 ? "Newest: " : next || place.page > 1 ? `Page ${place.page}: ` : "";
    return `${page}${count}${which} ${count === 1 ? "pet" : "pets"}${next ? ", and there are more" : ""}.`;
  }

  function drawChoice() {
    for (const button of $$("[data-status]", section)) button.setAttribute("aria-pressed", button.dataset.status === place.status);
    for (const button of $$("[data-limit]", section)) button.setAttribute("aria-pressed", button.dataset.limit === place.limit);
    $("#page-number").textContent = place.page ? `Page ${place.page}` : "Newest";
    $("#previous").textContent = place.page === 1 || isBeforeKnown(place) ? "Previous" : "First page";
    $("#previous").classList.toggle("nowhere", place.page === 1);
    $("#next").classList.toggle("nowhere", !next);
    tick();
  }

  function draw(animals, otherwise, added) {
    $("tbody", section).replaceChildren(...animals.map((pet) => row(pet, pet.id === added)));
    $("table", section).hidden = animals.length === 0;
    $(".nothing", section).hidden = animals.length > 0;
    $(".nothing p", section).textContent = otherwise;
    const wasAsked = document.activeElement === $("#again");
    $("#again").hidden = rows >= 0;
    if (wasAsked && rows >= 0) box.focus({ preventScroll: true }); // the button is gone
    drawChoice();
    for (const part of filled) part.style.minHeight = "";
    filled.forEach((part, i) => tab.set(`height ${i}`, `${part.offsetHeight}px`));
  }

  for (const button of $$("[data-status], [data-limit]", section)) {
    button.addEventListener("click", () => {
      const { status = place.status, limit = place.limit } = button.dataset;
      go(first({ status, limit }));
    });
  }
  $("#next").addEventListener("click", () => go(following(place, next)));
  $("#previous").addEventListener("click", () => go(before(place)));
  $("#again").addEventListener("click", () => {
    pause(0); // the key may have got another limit meanwhile: the service is asked
    load(place);
  });
  addEventListener("popstate", () => {
    const to = placeOf(location.search);
    if (searchOf(to) !== searchOf(place)) load(to); // otherwise it was a link within the page
  });
  exchange.preview({ url: urlOf(place) });
  drawChoice();

  return {
    load: (more) => load(place, more),

    // reveal goes to where a new pet is, which is the end of the list.
    async reveal({ id, status }) {
      const fits = ["", status].includes(place.status);
      const room = rows >= 0 && rows < place.limit && !next; // on the last page
      const back = BigInt(id) - BigInt(place.limit);
      const newest = { status: fits ? place.status : "", limit: place.limit, page: 0, steps: [String(back)] };
      const to = fits && room ? place : back > 0n ? newest : first(newest);
      return (await go(to, { added: id })).value?.some((pet) => pet.id === id);
    },
  };
}

// nextAfter is the id in the Link with rel="next". Its address may be another
// origin's, when the service is told a public one: only the query counts.
function nextAfter({ headers, url }) {
  const link = (headers.get("Link") ?? "").match(/<([^>]*)>[^,]*;\s*rel="?next\b/);
  return (link && new URL(link[1], url).searchParams.get("after")) || "";
}

function row({ id, name, categoryId, status }, isNew) {
  const tr = document.createElement("tr");
  const cell = (tag, text, className) => {
    const td = document.createElement("td");
    const inner = document.createElement(tag);
    inner.textContent = text;
    inner.className = className;
    td.append(inner);
    tr.append(td);
    return td;
  };
  cell("span", id, "number");
  const named = cell("bdi", name, "animal"); // whatever its direction, it leaves the row's alone
  cell("span", categoryId, "number");
  cell("span", status, `badge ${status}`);
  if (isNew) {
    const badge = document.createElement("span");
    badge.className = "badge new";
    badge.textContent = "new";
    named.append(" ", badge);
    tr.className = "fresh";
    tr.id = "newest"; // the link beside the form leads here
  }
  return tr;
}

// Adding

function setUpAdd(list) {
  const section = $("#add");
  const form = $("form", section);
  const outcome = $(".outcome", section);
  const added = $("#added");
  const exchange = newExchange(section);
  const sent = new Map(); // by body: the Idempotency-Key of what may have been stored
  let fresh = random(); // the next one
  let adding = null; // the name of the pet that is being added

  // The category's digits go into the body as they are: 64 bits do not fit a
  // JavaScript number. What is no integer is sent as text, for the service to judge.
  function request() {
    const { name, categoryId: digits, status } = Object.fromEntries(new FormData(form));
    const categoryId = digits.trim();
    const members = [`"name":${json(name)}`];
    if (categoryId) members.push(`"categoryId":${/^-?(0|[1-9]\d*)$/.test(categoryId) ? categoryId : json(categoryId)}`);
    if (status) members.push(`"status":${json(status)}`);
    const body = `{${members.join(",")}}`;
    const headers = { "Content-Type": "application/json", "Idempotency-Key": sent.get(body) ?? fresh };
    return { method: "POST", url: pets, headers, body, isOwn: isPet };
  }

  form.addEventListener("input", () => exchange.preview(request()));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (adding !== null) {
      showPet(outcome, "Still adding ", adding, " …");
      return;
    }
    clearErrors(form);
    show(outcome, "");
    added.hidden = true;
    const r = request();
    if (!sent.has(r.body)) fresh = random();
    sent.set(r.body, r.headers["Idempotency-Key"]);
    const asked = exchange.send(r);
    if (exchange.isLoading()) {
      adding = form.elements.namedItem("name").value;
      showPet(outcome, "Adding ", adding, " …");
    }
    const answer = await asked;
    adding = null;
    if (answer.error) {
      refuse(form, outcome, answer.error);
      return;
    }
    if (request().body === r.body) form.reset(); // nobody has typed another one meanwhile
    sent.delete(r.body);
    showPet(outcome, "Added ", answer.value.name, ` with the id ${answer.value.id}.`);
    $("tbody", added).replaceChildren(row(answer.value));
    $("a", added).hidden = true;
    added.hidden = false;
    $("a", added).hidden = gauges.some(({ left }) => left === 0) || !(await list.reveal(answer.value));
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
    const asked = exchange.send({ ...request(), isOwn: isPet });
    if (exchange.isLoading()) show(outcome, "Loading …");
    const answer = await asked;
    if (answer.stale) return;
    show(outcome, "");
    if (answer.status === 404 && answer.error.code) {
      complain(input, answer.error.message);
      input.focus();
    } else if (answer.error) {
      refused(outcome, answer.error);
    } else {
      const { name, categoryId, status } = answer.value;
      showPet(outcome, "", name, `, category ${categoryId}, ${status}.`);
    }
  });
  exchange.preview(request());
}

// The key

function askForKey() {
  complain($("#key"), "Paste your API key here first.");
  $("#key").focus();
}

function setUpKey(list) {
  const form = $("#key-form");
  const input = $("#key");
  const note = $("#key-note");
  const problem = $("#key-error");
  input.value = key;
  $("#forget").hidden = key === "";
  if (key) stillWaiting(problem); // after a reload
  input.addEventListener("input", tick);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const typed = input.value.replace(/^\s*(export\s|set\s|\$env:)?\s*key\s*=/i, "").replace(/^["'\s]*(authorization\s*:)?\s*bearer(?!\S)/i, "").replace(/["'\s]/g, "");
    input.value = typed;
    if (typed === key && pauseLeft() > 0) {
      stillWaiting(problem);
      return;
    }
    clearErrors(form);
    show(problem, "");
    note.textContent = "";
    if (typed === "") {
      askForKey();
      return;
    }
    if (/[^!-~]/.test(typed)) {
      complain(input, "A key has only letters, digits, and underscores.");
      input.focus();
      return;
    }
    pause(0); // another key has limits of its own, and this one may have got others
    key = typed;
    tab.set("key", key);
    $("#forget").hidden = false;
    const answer = await list.load({ greeting: "Your key works. " });
    if (key !== typed || answer.stale) return;
    if (answer.error) {
      if (answer.status !== 401) refused(problem, answer.error); // that is told already
      return;
    }
    note.textContent = `Your key works. It ends in ${key.slice(-4)}.`;
    $(narrow.matches ? "#list .controls" : "#list").scrollIntoView();
    $("#list-title").focus({ preventScroll: true });
  });

  $("#reveal").addEventListener("click", ({ target }) => {
    const shown = !input.classList.toggle("masked");
    target.setAttribute("aria-pressed", shown);
  });

  // A new page knows nothing of what the key has shown.
  $("#forget").addEventListener("click", () => {
    tab.set("key", "");
    tab.set("pausedUntil", "");
    input.value = "";
    location.reload();
  });
}

if (key) $(".limits").hidden = false; // its place is kept free
const narrow = matchMedia("(max-width: 40rem)");
const fold = () => {
  for (const docs of $$("details.docs")) docs.open = !narrow.matches;
};
narrow.addEventListener("change", fold);
fold();
const unfold = () => {
  if (location.hash === "#fetch") $("#fetch details").open = true;
};
addEventListener("hashchange", unfold);
unfold();
newSample($(".start .exchange"))({ url: pets, first: true });
for (const body of $$(".body.sample")) colour(body, body.textContent);
const list = setUpList();
setUpAdd(list);
setUpFetch();
setUpKey(list);
tick();
setInterval(tick, 250);
if (key) list.load();
