// One rule: what it says, what it does, and how to change it.
import { byId, keyed, keyText, make, number, percent, rate, setClass, setText, shown } from './dom.js';
import { plot, stack } from './chart.js';
import { change } from './confirm.js';
import { differences } from './diff.js';
import * as history from './history.js';
import { get, getText, send, subject, target } from './node.js';
import { button, discardDraft, keepDraft, mistakes, onSubmit, rows, subjectLink } from './parts.js';
import { twoMinutes, wayItem, whose } from './now.js';
import { kept, ways } from './rates.js';
import { badges, describe } from './rules.js';
import { ruleNamed, store } from './store.js';

const topShown = 12;
const historyPace = 15000; // milliseconds until the history is asked for again

let name = ''; // of the rule
let chosen = false; // a person has chosen a list of subjects
let inForce = null; // its text and version
let historyAt = 0; // when the history was asked for
let shownVersion = 0; // the version whose text is in the form

const path = () => `v1/rules/${encodeURIComponent(name)}`;

export const rule = {
  open([wanted]) {
    name = wanted;
    inForce = null;
    chosen = false;
    shownVersion = 0;
    historyAt = 0;
    history.choice('rule-span', askHistory);
    setText(byId('rule-name'), shown(name));
    byId('rule-by').addEventListener('change', () => {
      chosen = true;
      askTop();
    });
    keepDraft(byId('rule-text'), `the rule ${shown(name)}`, () => inForce?.text);
    byId('rule-undo').addEventListener('click', refill);
    byId('rule-shadow-switch').addEventListener('click', switchShadow);
    onSubmit(byId('rule-edit'), edit);
    fill(true);
  },

  questions(turn) {
    const list = turn % 2 ? [askTop(), askNearest()] : [];
    if (Date.now() - historyAt > historyPace) list.push(askHistory());
    return list;
  },

  heardRules() {
    fill(false);
    if (!chosen) byId('rule-by').value = usual();
  },

  show() {
    const spec = ruleNamed(name);
    const live = store.meter.rules.get(name);
    const known = spec ? describe(spec) : store.doc ? 'There is no such rule in force.' : 'Not known yet.';
    setText(byId('rule-note'), known);
    keyed(byId('rule-tags'), spec ? badges(spec, store.factors) : [], (b) => b[0], ([text, meaning]) => make('span', { class: 'tag', title: shown(meaning) }, shown(text)), () => {});
    byId('rule-shadow-switch').hidden = !spec; // whether it would turn that on or off is not known yet
    setText(byId('rule-shadow-switch'), spec?.shadow ? 'Let it refuse: no shadow rule' : 'Make it a shadow rule');
    showNow(spec, live);
    showShadow(spec);
  },
};

function showNow(spec, live) {
  const r = live?.rate;
  const refused = r && r.refused + r.shadow;
  setText(byId('rule-checks'), rate(live ? r?.checks : 0));
  setText(byId('rule-checks-note'), whose(store.report.nodes));
  setText(byId('rule-refused-title'), spec?.shadow ? 'Would be refused a second' : 'Refused a second');
  setText(byId('rule-refused'), rate(live ? refused : 0));
  setClass(byId('rule-refused'), refused > 0 ? `big ${spec?.shadow ? 'warn-text' : 'refusing'}` : 'big');
  setText(byId('rule-refused-note'), r ? `${percent(refused, r.checks)} of its checks` : 'of its checks');
  plot(byId('rule-checks-chart'), live?.history ?? [], ['checks'], kept, twoMinutes);
  plot(byId('rule-refused-chart'), (live?.history ?? []).map((h) => h && { refused: h.refused + h.shadow }), ['refused'], kept, twoMinutes);
  stack(byId('rule-ways-bar'), r?.ways);
  keyed(byId('rule-ways'), ways, (way) => way, wayItem, (e, way) => {
    const n = r?.ways[way] ?? 0;
    setClass(e, n ? '' : 'zero');
    setText(e.children[2], rate(r ? n : null));
    setText(e.children[3], r ? percent(n, r.checks) : '');
  });
}

async function askHistory() {
  historyAt = Date.now();
  const [span, mine] = [byId('rule-span').value, name];
  const report = await history.ask(span, mine);
  if (byId('rule-span')?.value !== span || mine !== name) return;
  const shadow = ruleNamed(name)?.shadow;
  setText(byId('rule-hour-what'), shadow ? 'would be refused' : 'refused');
  history.draw('rule-hour', report, span, shadow ? 'shadow' : 'refused');
  const sum = (what) => report.steps.reduce((n, s) => n + s[what], 0);
  const would = sum('shadow_refused') ? `, ${number(sum('shadow_refused'))} would have been` : '';
  const latency = history.latencyText(report.doors[0]);
  setText(byId('rule-hour-sum'), `${number(sum('checks'))} checks, ${number(sum('refused'))} refused${would}${latency ? `; ${latency}` : ''}.`);
}

// showShadow says what a shadow rule would have done.
function showShadow(spec) {
  const counts = store.report.rules.find((r) => r.rule === name)?.checks ?? {};
  const sum = (byWay) => Object.values(byWay ?? {}).reduce((n, v) => n + v, 0);
  const all = Object.values(counts).reduce((n, byWay) => n + sum(byWay), 0);
  const would = sum(counts['shadow-refused']);
  byId('rule-shadow').hidden = !spec?.shadow;
  setText(byId('rule-shadow'), `It refuses nothing, because it is a shadow rule. Since the nodes began it would have refused ${number(would)} of ${number(all)} checks.`);
}

// kinds are the lists of subjects: what the numbers are.
const kinds = {
  recent: ['5 minutes', 'recent', 'In all', 'refused'],
  refused: ['Refused', 'refused', 'of checks', 'checks'],
  shadow: ['Would be refused', 'shadow', 'of checks', 'checks'],
  near: ['Used', 'used', 'of', 'limit'],
  used: ['Used', 'used', 'checks', 'checks'],
  delayed: ['Delayed', 'delayed', 'of checks', 'checks'],
};

// usual is the list that people look at a rule for.
const usual = () => (ruleNamed(name)?.shadow ? 'shadow' : 'recent');

async function askTop() {
  const mine = name;
  const listOf = (by) => get(`v1/top?${new URLSearchParams({ by, rule: mine, n: topShown })}`);
  let by = chosen ? byId('rule-by').value : usual();
  let top = await listOf(by);
  if (!chosen && !top.subjects.length) { // a rule that refuses nobody has subjects, too
    by = 'near';
    top = await listOf(by);
  }
  if (!byId('rule-top') || mine !== name || (chosen && byId('rule-by').value !== by)) return;
  byId('rule-by').value = by;
  const [head, count, of, all] = kinds[by];
  setText(byId('rule-by-count'), head);
  setText(byId('rule-by-of'), of);
  rows(byId('rule-top'), top.subjects, (s) => JSON.stringify(s.key), (s) => [subjectLink(name, s.key, false), number(s[count] ?? 0), number(s[all] ?? 0), null], { numbers: [1, 2], empty: `Nobody, as far as is known: ${whose(top.nodes)}.` });
  const wrong = by === 'recent' || by === 'refused';
  top.subjects.forEach((s, i) => {
    const cell = byId('rule-top').rows[i].cells[3];
    if (wrong && !cell.firstElementChild) cell.append(button('False positive', () => report(s), { class: 'plain small' }));
    if (!wrong) cell.replaceChildren();
  });
}

async function askNearest() {
  const near = await get(`v1/top?${new URLSearchParams({ by: 'near', rule: name, n: 1 })}`);
  if (!byId('rule-headroom')) return;
  const [s] = near.subjects;
  const left = s ? Math.max(0, s.limit - s.used) : 0;
  setText(byId('rule-headroom'), s ? percent(left, s.limit) : '–');
  setClass(byId('rule-headroom'), s && !left ? 'big refusing' : 'big');
  setText(byId('rule-headroom-note'), s ? `is left for ${keyText(s.key)}, which is nearest to a limit: it has used ${number(s.used)} of ${number(s.limit)}` : 'nobody has used anything of it');
}

// fill puts the rule that is in force into the form. What a person has typed stays, unless they want it gone.
async function fill(anew) {
  const version = store.doc?.rules_version ?? 0;
  const field = byId('rule-text');
  const before = field.value;
  const typed = inForce && before !== inForce.text;
  if (!anew && (typed || version === shownVersion)) return;
  shownVersion = version;
  try {
    const next = await getText(path());
    if (byId('rule-text') !== field || (inForce && !anew && field.value !== before)) return; // typed meanwhile
    inForce = next;
    field.value = store.drafts.get(location.hash)?.text ?? next.text;
    field.rows = Math.min(30, next.text.split('\n').length + 1);
  } catch (e) {
    if (byId('rule-text') === field && e.status === 404) field.value = '';
  }
}

// refill forgets what a person has typed.
function refill() {
  discardDraft();
  return fill(true);
}

const rehearsal = async (body) => {
  const d = await send('POST', `v1/rules/diff?rule=${encodeURIComponent(name)}`, body);
  return { version: `"${d.from}"`, content: differences(d), details: (d.changes ?? []).flatMap((c) => c.details ?? []).slice(0, 3) };
};

// write asks whether the rule shall be another one, and makes it so.
function write(title, body) {
  let version = '';
  let details = [];
  change({
    title, button: 'Apply', scope: 'admin', reason: true,
    rehearse: async () => {
      const r = await rehearsal(body);
      [version, details] = [r.version, r.details.map((text) => shown(text, 200))];
      return r.content;
    },
    make: async (message) => {
      const written = await send('PUT', `${path()}?${new URLSearchParams({ via: 'dashboard', message })}`, body, version);
      inForce = null;
      return `Version ${written.version} is in force: ${[title, ...details, ...(written.notes ?? [])].join('; ')}`;
    },
    done: refill,
  });
}

const edit = () => write(`Change the rule ${shown(name)}`, byId('rule-text').value);

// switchShadow makes the rule what the button says, whatever it has become meanwhile.
async function switchShadow() {
  const refuses = !ruleNamed(name)?.shadow;
  const title = refuses ? `Make ${shown(name)} a shadow rule` : `Let the rule ${shown(name)} refuse`;
  try {
    const { shadow: _, ...rest } = await get(path());
    write(title, refuses ? { ...rest, shadow: true } : rest);
  } catch (e) {
    byId('rule-note').replaceChildren(...mistakes(e));
  }
}

// report says that a subject should not have been refused.
export function report(s, rule = name) {
  const key = [s.key].flat();
  change({
    title: 'Report a false positive', button: 'Report it', scope: 'adjust',
    rehearse: async () => {
      const usage = await get(`v1/usage?${subject(rule, key)}`);
      const counts = usage.limits.map((l) => `${shown(l.name)}: ${number(l.used)} of ${number(l.limit)} ${shown(l.unit)}`);
      return [`The rule ${shown(rule)} should not have refused this subject. It is counted in rlnode_false_positives_total, and changes nothing that the subject has used:`, ...counts];
    },
    make: async () => {
      const told = await send('POST', 'v1/feedback', { ...target(rule, key), verdict: 'false-positive' });
      return `A false positive of ${shown(rule)} is counted, the ${number(told.false_positives)}. at this node since it began`;
    },
  });
}
