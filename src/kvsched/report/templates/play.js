"use strict";
// Shows what the lesson worked out; it counts and decides nothing itself.
(function () {
  const data = JSON.parse(document.getElementById("play-data").textContent);
  const at = (id) => document.getElementById(id);
  // Okabe and Ito's colours, told apart by most eyes.
  const COLOURS = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b8a900", "#7f7f7f"];
  const SECONDS_A_STEP = 1.5;
  const state = { policy: data.policies[0].name, capacity: data.first, step: 0, language: data.language };
  let timer = 0;

  function make(name, className, text, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined && text !== null) made.textContent = text;
    made.append(...children);
    return made;
  }
  const word = (key) => data.words[state.language][key];
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) =>
    Array.isArray(values[name]) ? tell(values[name]) : String(values[name]));
  const tell = (message) => fill(word(message[0]), message[1]);
  const run = () => data.runs[state.policy + " " + state.capacity];
  const name = (prefix) => data.prefixes[prefix];
  const tint = (element, prefix) => {
    element.style.setProperty("--mine", COLOURS[prefix % COLOURS.length]);
    return element;
  };

  function writeHash() {
    const values = { policy: state.policy, capacity: state.capacity, step: state.step + 1, language: state.language };
    history.replaceState(null, "", "#" + new URLSearchParams(values));
  }

  function readHash() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const known = (values, value) => values.some((each) => String(each) === value);
    if (known(data.policies.map((each) => each.name), asked.get("policy"))) state.policy = asked.get("policy");
    if (known(data.capacities, asked.get("capacity"))) state.capacity = Number(asked.get("capacity"));
    if (known(data.languages, asked.get("language"))) state.language = asked.get("language");
    const step = Number(asked.get("step"));
    if (Number.isInteger(step)) state.step = step - 1;
    state.step = Math.min(Math.max(state.step, 0), run().steps.length - 1);
  }

  function showRequests(step) {
    const outcome = {};
    for (const each of run().steps.slice(0, state.step + 1))
      if (each.kind === "reuse" || each.kind === "miss") outcome[each.request] = each.kind === "reuse" ? "hit" : "miss";
    at("requests").replaceChildren(...data.requests.map(function (request, index) {
      const now = index === step.request;
      const said = outcome[index] ? word(outcome[index]) : now ? word("present") : "";
      const button = tint(make("button", "", (index + 1) + " " + name(request[0])), request[0]);
      button.type = "button";
      button.append(make("small", "", request[1] + (said ? " · " + said : "")));
      if (now) button.setAttribute("aria-current", "step");
      button.addEventListener("click", () => go(run().steps.findIndex((each) => each.request === index)));
      return make("li", (outcome[index] || "") + (index > step.request ? " later" : ""), null, button);
    }));
  }

  function showStats(step) {
    const asked = data.requests.slice(0, step.request + 1);
    const bytes = asked.reduce((sum, request) => sum + request[1], 0);
    const part = (some, all) => fill(word("of"), { part: some, all: all });
    const shown = [[word("hits"), part(step.hits, asked.length)], [word("hit_bytes"), part(step.hitBytes, bytes)],
      [word("evictions"), step.evictions]];
    if (run().records.length) shown.push([word("records"), (step.heap || []).length], [word("entries"), step.ledger.length]);
    at("stats").replaceChildren(...shown.map(([label, value]) =>
      make("div", "", null, make("dt", "", label), make("dd", "", value))));
  }

  function showBar(step) {
    const present = data.requests[step.request][0];
    const rows = step.ledger.map((each) => run().rows[each]);
    const parts = rows.map(function (row) {
      const part = tint(make("div", row[0] === present ? "now" : "", name(row[0]), make("small", "", row[1])), row[0]);
      part.style.flex = row[1] + " 0 0";
      part.title = name(row[0]) + ", " + row[1];
      return part;
    });
    const free = state.capacity - step.used;
    if (free > 0) {
      const part = make("div", "free", word("free"), make("small", "", free));
      part.style.flex = free + " 0 0";
      parts.push(part);
    }
    at("bar").replaceChildren(...parts);
    at("room").textContent = fill(word("room"), { used: step.used, capacity: state.capacity });
  }

  function scoreOf(row) {
    const part = (className, text) => make("span", className, text);
    return [part("hits", row[2]), " + ", part("recency", row[4]), " − ", part("size", row[5]), " = ", make("b", "", row[6])];
  }

  function showLedger(step) {
    const chapter = run().records.length > 0;
    const titles = ["prefix", "bytes", "uses", "last_use"].concat(chapter ? ["score", "now"] : ["standing"]);
    const head = make("tr", "", null, ...titles.map(function (key, index) {
      const cell = make("th", index > 0 && index < 4 || key === "now" ? "n" : "", word(key));
      cell.scope = "col";
      return cell;
    }));
    at("ledger").tHead.replaceChildren(head);
    const present = data.requests[step.request][0];
    const line = function (row, gone) {
      const title = make("th", "", null, tint(make("span", "mark"), row[0]), make("span", "name", name(row[0])));
      title.scope = "row";
      if (gone) title.append(make("span", "tag", word("leaves")));
      const cells = [1, 2, 3].map((index) => make("td", "n", row[index]));
      if (chapter) {
        cells.push(make("td", "score", null, ...scoreOf(row)));
        cells.push(make("td", "n", data.recency[step.request + 1 - row[3]]));
      } else cells.push(make("td", "", row[4] ? tell(row[4]) : ""));
      return make("tr", gone ? "gone" : row[0] === present ? "now" : "", null, title, ...cells);
    };
    const lines = step.ledger.map((each) => line(run().rows[each], false));
    if (step.gone !== undefined) lines.unshift(line(run().rows[step.gone], true));
    if (!lines.length) {
      const cell = make("td", "", word("nothing"));
      cell.colSpan = titles.length;
      lines.push(make("tr", "", null, cell));
    }
    at("ledger").tBodies[0].replaceChildren(...lines);
    const queues = step.ledger.some((each) => !chapter && run().rows[each][4][0] === "by.queues");
    at("order").hidden = chapter;
    at("order").textContent = word(queues ? "queues" : "order");
  }

  function recordOf(number) {
    const [score, last, prefix] = run().records[number];
    return tint(make("span", "record", null, make("b", "", name(prefix)), make("span", "", score),
      make("small", "", "@" + last)), prefix);
  }

  function showHeap(step) {
    at("heap-section").hidden = !run().records.length;
    const heap = step.heap || [], stale = step.stale || [];
    const levels = heap.length ? Math.floor(Math.log2(heap.length)) + 1 : 0;
    const columns = 2 ** Math.max(levels - 1, 0);
    at("heap").style.gridTemplateColumns = "repeat(" + columns + ", minmax(43px, 1fr))";
    at("heap").replaceChildren(...heap.map(function (number, index) {
      const level = Math.floor(Math.log2(index + 1)), wide = columns / 2 ** level;
      const first = (index + 1 - 2 ** level) * wide + 1;
      const record = recordOf(number);
      if (2 * index + 1 < heap.length) record.classList.add("parent");
      if (stale.includes(number)) {
        record.classList.add("old");
        record.append(make("small", "", word("stale")));
      }
      if (number === step.pushed) record.classList.add("fresh");
      const place = make("li", index % 2 ? "left" : "right", null, record);
      place.style.gridArea = (level + 1) + " / " + first + " / auto / span " + wide;
      return place;
    }));
    if (!heap.length) at("heap").replaceChildren(make("li", "caption", word("empty")));
    at("popped").replaceChildren();
    if (step.popped === undefined) return;
    const record = recordOf(step.popped);
    record.classList.add(step.kind === "stale" ? "out" : "left");
    const what = word(step.kind === "stale" ? "stale" : "leaves");
    at("popped").append(word("popped"), record, what);
  }

  function showCompare() {
    const head = ["", ...data.capacities].map((text) => make("th", "", text));
    at("compare").tHead.replaceChildren(make("tr", "", null, ...head));
    at("compare").tBodies[0].replaceChildren(...data.policies.map(function (policy) {
      const title = make("th", "", policy.name);
      title.scope = "row";
      return make("tr", "", null, title, ...data.capacities.map(function (capacity) {
        const button = make("button", "", data.runs[policy.name + " " + capacity].steps.at(-1).hits);
        button.type = "button";
        button.setAttribute("aria-label", policy.name + ", " + capacity + ": " + button.textContent);
        button.setAttribute("aria-pressed", String(policy.name === state.policy && capacity === state.capacity));
        button.addEventListener("click", () => change({ policy: policy.name, capacity: capacity }));
        return make("td", "", null, button);
      }));
    }));
    at("compare-note").textContent = fill(word("compare_note"), { requests: data.requests.length });
  }

  function showAll() {
    at("all").replaceChildren(...run().steps.map(function (step, index) {
      const button = make("button", "", null, make("span", "", index + 1), make("span", "", tell(step.said)));
      button.type = "button";
      button.addEventListener("click", () => go(index));
      return make("li", "", null, button);
    }));
  }

  function show() {
    const steps = run().steps, step = steps[state.step];
    at("said").textContent = tell(step.said);
    at("said").dataset.kind = step.kind;
    at("count").textContent = fill(word("count"), { step: state.step + 1, steps: steps.length });
    at("position").max = steps.length;
    at("position").value = state.step + 1;
    at("position").setAttribute("aria-valuetext", at("count").textContent);
    for (const id of ["first", "back"]) at(id).disabled = state.step === 0;
    for (const id of ["forward", "last"]) at(id).disabled = state.step === steps.length - 1;
    showRequests(step);
    showStats(step);
    showBar(step);
    showLedger(step);
    showHeap(step);
    for (const [index, line] of Array.from(at("all").children).entries())
      if (index === state.step) line.firstChild.setAttribute("aria-current", "step");
      else line.firstChild.removeAttribute("aria-current");
    writeHash();
  }

  // What depends on the run or the language, and not on the step.
  function showRun() {
    document.documentElement.lang = state.language === "zh" ? "zh-Hans" : state.language;
    document.title = word("title");
    for (const element of document.querySelectorAll("[data-word]")) element.textContent = word(element.dataset.word);
    for (const element of document.querySelectorAll("[data-label]"))
      element.setAttribute("aria-label", word(element.dataset.label));
    for (const button of document.querySelectorAll("[data-language]"))
      button.setAttribute("aria-pressed", String(button.dataset.language === state.language));
    at("policy").value = state.policy;
    at("capacity").value = state.capacity;
    at("note").textContent = tell(data.policies.find((each) => each.name === state.policy).note);
    label();
    showCompare();
    showAll();
    show();
  }

  function label() {
    at("play").setAttribute("aria-label", word(timer ? "pause" : "play"));
    at("play").textContent = timer ? "❚❚" : "▶▶";
  }

  function stop() {
    window.clearInterval(timer);
    timer = 0;
    label();
  }

  function go(step) {
    stop();
    state.step = Math.min(Math.max(step, 0), run().steps.length - 1);
    show();
  }

  // Another run is shown at the same request, so that the two can be compared.
  function change(values) {
    stop();
    const request = run().steps[state.step].request;
    const atEnd = state.step === run().steps.length - 1;
    const first = run().steps.findIndex((each) => each.request === request) === state.step;
    Object.assign(state, values);
    const steps = run().steps;
    if (atEnd) state.step = steps.length - 1;
    else if (first) state.step = steps.findIndex((each) => each.request === request);
    else state.step = steps.findLastIndex((each) => each.request === request);
    showRun();
  }

  function speak(language) {
    state.language = language;
    showRun();
  }

  function toggle() {
    if (timer) return stop();
    if (state.step === run().steps.length - 1) go(0);
    timer = window.setInterval(function () {
      state.step += 1;
      show();
      if (state.step === run().steps.length - 1) stop();
    }, 1000 * SECONDS_A_STEP);
    return label();
  }

  for (const each of data.policies) at("policy").append(new Option(each.name, each.name));
  for (const each of data.capacities) at("capacity").append(new Option(each, each));
  const acts = { first: () => go(0), back: () => go(state.step - 1), play: toggle,
    forward: () => go(state.step + 1), last: () => go(Infinity) };
  for (const [id, act] of Object.entries(acts)) at(id).addEventListener("click", act);
  at("position").addEventListener("input", () => go(Number(at("position").value) - 1));
  at("policy").addEventListener("change", () => change({ policy: at("policy").value }));
  at("capacity").addEventListener("change", () => change({ capacity: Number(at("capacity").value) }));
  for (const button of document.querySelectorAll("[data-language]"))
    button.addEventListener("click", () => speak(button.dataset.language));
  const keys = { ArrowLeft: acts.back, ArrowRight: acts.forward, Home: acts.first, End: acts.last, " ": acts.play };
  document.addEventListener("keydown", function (event) {
    const own = event.target.closest("select, input, .scroll, summary");
    const pressed = event.key === " " && event.target.closest("button");
    if (own || pressed || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  window.addEventListener("hashchange", function () {
    readHash();
    showRun();
  });
  readHash();
  showRun();
})();
