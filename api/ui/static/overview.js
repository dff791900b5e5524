// The overview: how it goes, and what to look at first.
import { byId, keyText, make, names, number, percent, rate, setClass, setText, shown } from './dom.js';
import { ruleAddress } from './address.js';
import { eventsOf, outageText } from './events.js';
import { get } from './node.js';
import * as history from './history.js';
import { showNow, whose } from './now.js';
import { clock, rows, subjectLink, time } from './parts.js';
import { limitsText } from './rules.js';
import { ruleNamed, store } from './store.js';

const historyPace = 15000; // milliseconds until the history is asked for again
const slowPace = 10; // turns from question to question about what changes slowly
const topShown = 8;

let historyAt = 0; // when the history was asked for
let ofNodes = ''; // and of which nodes
let known = null; // the last events
let all = false; // of them are shown

export const overview = {
  open() {
    historyAt = 0;
    this.turns = 0;
    history.choice('span', askHistory);
    [known, all] = [null, false];
    byId('events-all').addEventListener('click', () => {
      all = !all;
      if (known) showEvents(known);
    });
  },

  questions(turn) {
    const slow = this.turns++ % slowPace === 0;
    const list = [];
    if (turn % 2 || slow) list.push(get(`v1/top?by=recent&n=${topShown}`).then(showTop), get('v1/top?by=near&n=100').then(showTight));
    if (slow) list.push(eventsOf().then(showEvents));
    const nodes = store.report ? whose(store.report.nodes) : '';
    if (Date.now() - historyAt > historyPace || nodes !== ofNodes) {
      ofNodes = nodes;
      list.push(askHistory());
    }
    return list;
  },

  show() {
    byId('health').hidden = store.troubles.length > 0; // the notices say what is wrong
    const [well, refused] = wellText(store);
    setText(byId('health').children[1], well);
    setText(byId('health-refused'), refused);
    showNow(store.meter, store.report);
  },
};

async function askHistory() {
  historyAt = Date.now();
  const name = byId('span').value;
  const report = await history.ask(name);
  if (byId('span')?.value !== name) return;
  history.draw('hour', report, name);
  history.drawLatency(report);
}

let most = null; // the subject that is refused most

// wellText says in a sentence that the nodes are well, and in another what is refused, which may be well or not.
function wellText({ cluster, report, meter }) {
  const alive = cluster.members.filter((m) => m.state === 'alive');
  const nodes = alive.length === 1 ? `${names(alive)} is the only node` : `all ${alive.length} answer`;
  const moving = cluster.settled ? '' : ', and partitions are moving';
  const { refused, denied, checks } = meter.rates ?? { refused: 0, denied: 0, checks: 0 };
  const who = denied > refused / 2 ? ', most of them by deny lists' : most?.recent ? `, most often ${keyText(most.key)} by ${shown(most.rule)}` : '';
  return [`All nodes are well: ${nodes}${cluster.leader ? ` and ${shown(cluster.leader)} leads` : ''}${moving}. What you see is of ${whose(report.nodes)}.`,
    refused > 0 ? `${percent(refused, checks)} of checks are refused${who}.` : ''];
}

// why says of a rule what its subjects are refused for.
function why(name) {
  const rule = ruleNamed(name);
  return [make('a', { href: ruleAddress(name) }, shown(name)), make('small', {}, rule ? shown([limitsText(rule), rule.block ? `blocks for ${[rule.block].flat().join(', ')}` : ''].filter(Boolean).join(' · ')) : '')];
}

function showTop(top) {
  if (!byId('top')) return;
  const list = top.subjects.slice(0, topShown);
  [most] = list;
  const byLists = store.meter.rates?.denied ?? 0;
  setText(byId('top-note'), `${list.length ? 'Counted' : 'Nobody has been refused'} since the nodes began: ${whose(top.nodes)}.${byLists > 0 ? ` Deny lists refuse another ${rate(byLists)} checks a second, which are not among these.` : ''}`);
  rows(byId('top'), list, (s) => JSON.stringify([s.rule, s.key]), (s) => [subjectLink(s.rule, s.key, false), why(s.rule), number(s.recent), number(s.refused), number(s.checks)], { numbers: [2, 3, 4], empty: 'Nobody.' });
  for (const row of byId('top').rows) setClass(row.cells[4], 'wide num');
}

function showTight(near) {
  if (!byId('tight')) return;
  const tightest = new Map();
  for (const s of near.subjects.filter((one) => !ruleNamed(one.rule)?.shadow)) {
    const part = s.used / Math.max(1, s.limit);
    if (part > (tightest.get(s.rule)?.part ?? 0)) tightest.set(s.rule, { ...s, part });
  }
  const list = [...tightest.values()].sort((a, b) => b.part - a.part).slice(0, topShown);
  rows(byId('tight'), list, (s) => s.rule, (s) => [make('a', { href: ruleAddress(s.rule) }, shown(s.rule)), subjectLink(s.rule, s.key, false), [percent(s.used, s.limit), make('small', {}, `${number(s.used)} of ${number(s.limit)}`)]], { numbers: [2], empty: 'Nobody has used anything yet.' });
}

const eventsShown = 20; // until all are asked for

// showEvents lists outages first: they stay for the day, whatever else happens.
function showEvents({ list, outages }) {
  if (!byId('events')) return;
  known = { list, outages };
  const lines = [
    ...outages.map((o) => ({ key: `o${o.name} ${o.from}`, at: o.from, what: [make('b', { class: o.to ? 'warn-text' : 'bad-text' }, outageText(o)), make('small', {}, `said by ${o.by.map((n) => shown(n)).join(', ')}`)] })),
    ...list,
  ];
  rows(byId('events'), all ? lines : lines.slice(0, Math.max(eventsShown, outages.length)), (e) => e.key, (e) => [time(e.at, clock), e.what], { empty: 'Nothing, as far as this node knows.' });
  byId('events-all').hidden = lines.length <= eventsShown;
  setText(byId('events-all'), all ? 'Show the latest' : `Show all ${lines.length}`);
}
