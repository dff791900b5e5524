// The page: asks its node each second while somebody looks, and shows what it hears.
import { byId, keyed, make, setClass, setText, shown, span } from './dom.js';
import { Failure, get, getLarge } from './node.js';
import { here } from './address.js';
import { sinceOf } from './events.js';
import { store } from './store.js';
import { troubles } from './trouble.js';
import { token } from './token.js';
import { overview } from './overview.js';
import { rules } from './rules.js';
import { rule } from './rule.js';
import { subjects } from './subjects.js';
import { documents } from './document.js';
import { lists } from './lists.js';
import { bills } from './bills.js';
import { nodes } from './nodes.js';
import { regions } from './regions.js';

const pace = 1000; // milliseconds from question to question
const rulesPace = 5000; // milliseconds until the rules are asked for again
const sincePace = 3; // turns until it is asked since when nodes have failed
const refusedPace = 10000; // milliseconds until a question is asked again that the token does not allow
const lateAfter = 3000; // milliseconds without an answer

// A page has a template, and these functions: open(rest) when its address is entered; questions(turn), promises asked with
// each turn; show(), which draws what is known; heardRules() when there are others.
const pages = { overview, subjects, document: documents, lists, bills, nodes, regions };

let page = null; // the one that is open
let asking = false; // for the rules
let askAgain = 0; // when, after they were not told
let heard = 0; // when the last answer came; 0: none yet
let since = Date.now(); // when the page began to wait for answers
let live = false; // the last questions were answered, and none is overdue
let refused = ''; // why the token is not enough; empty: it is
let untold = ''; // why the page lacks something; empty: it lacks nothing
let turn = 0;
let timer = 0;

// enter opens the page of the address.
function enter(byPerson) {
  const [name, rest] = here();
  page = name === 'rules' ? (rest.length ? rule : rules) : pages[name];
  const template = name === 'rules' && rest.length ? 'rule' : name;
  byId('main').replaceChildren(byId(`page-${template}`).content.cloneNode(true));
  for (const link of byId('pages').children) {
    if (link.hash === `#/${name}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  untold = '';
  if (byPerson) byId('done').hidden = true;
  page.open(rest);
  if (store.doc) page.heardRules?.();
  show();
  if (byPerson) {
    byId('main').querySelector('h2').focus({ preventScroll: true });
    scrollTo(0, 0);
    again();
  }
}

// again asks now.
function again() {
  clearTimeout(timer);
  if (!document.hidden) tick();
}

async function tick() {
  if (token.asked) return show(); // the form goes on
  const began = Date.now();
  const mine = ++turn;
  const questions = [
    get('v1/activity').then((r) => { store.meter.push(r); store.report = r; }),
    get('v1/cluster').then((c) => { store.cluster = c; }),
  ];
  if (turn % 2 && store.doc?.rules?.some((r) => r.adaptive)) questions.push(get('v1/load').then((l) => { store.factors = new Map(l.rules.map((r) => [r.rule, r.factor])); }));
  if (turn % sincePace === 0 && lacksSince()) questions.push(sinceOf().then((since) => { store.since = since; }));
  questions.push(...(page.questions?.(turn) ?? []));
  const outcomes = await Promise.allSettled(questions);
  if (document.hidden || mine !== turn) return; // nobody looks, or the page has asked anew since
  const failures = outcomes.map((o) => o.reason).filter(Boolean);
  for (const e of failures) if (!(e instanceof Failure)) reportError(e); // a mistake of ours
  untold = failures.find((e) => e.status >= 404)?.message ?? '';
  refused = outcomes.slice(0, 2).find((o) => o.reason?.status === 403)?.reason.message ?? '';
  live = outcomes[0].status === 'fulfilled' && outcomes[1].status === 'fulfilled';
  if (live) heard = Date.now();
  else if (store.report) store.meter.gap();
  if (!refused) askRules();
  clearTimeout(timer);
  if (!token.asked) timer = setTimeout(tick, Math.max(100, (refused ? refusedPace : pace) - (Date.now() - began)));
  show();
}

// lacksSince reports whether a node has failed of which it is not known since when.
function lacksSince() {
  const members = store.cluster?.members ?? [];
  for (const m of members) if (m.state === 'alive') store.since.delete(m.name); // it may fail again
  return members.some((m) => m.state === 'failed' && !store.since.has(m.name));
}

// askRules asks for the rules when there is another version of them.
async function askRules() {
  const { cluster, doc } = store;
  if (!cluster?.rules_version || asking || Date.now() < askAgain || doc?.rules_version === cluster.rules_version) return;
  asking = true;
  const version = cluster.rules_version;
  try {
    const next = await getLarge('v1/rules');
    next.rules_version = version;
    store.doc = next;
    page.heardRules?.();
    show();
  } catch {
    askAgain = Date.now() + rulesPace;
  } finally {
    asking = false;
  }
}

function show() {
  const { report, cluster, meter } = store;
  const late = !token.asked && !refused && Date.now() - Math.max(heard, since) > lateAfter;
  const list = late || token.asked || !cluster || !report ? [] : troubles(cluster, report, meter, store.since);
  store.troubles = list;
  if (report && cluster) {
    showFacts();
    page.show?.();
  }
  const notices = [...list];
  if (refused) notices.push(['bad', 'refused', `The node refuses to tell more: ${refused}.`]);
  for (const [address, { what }] of store.drafts) if (address !== location.hash) notices.push(['warn', `draft ${address}`, `Your edit of ${what} is not applied. It is kept there until this tab is closed.`]);
  if (untold && !late && !cluster?.starting) notices.push(['warn', 'untold', `Not all can be shown: ${shown(untold, 300)}`]);
  if (late && heard) notices.push(['bad', 'stale', `No answer from ${report.node} since ${new Date(heard).toLocaleTimeString('en-GB')}. What you see is from then; it goes on by itself when the node is back.`]);
  if (late && !heard) notices.push(['bad', 'stale', 'The node does not answer yet.']);
  keyed(byId('notices'), notices, (n) => n[1], () => make('p'), (e, [kind, , text]) => {
    setClass(e, `notice ${kind}`);
    setText(e, text);
  });
  document.body.classList.toggle('stale', late);
  // Green is for what is shown as it happens, and nothing else. What is wrong with the cluster stands in the notices.
  const now = live && !late && !token.asked && !refused;
  setClass(byId('pulse'), now ? 'pulse good' : late || refused ? 'pulse bad' : 'pulse');
  setText(byId('pulse-text'), token.asked ? 'asks for a token' : refused ? 'refused' : now ? 'live' : late && heard ? `no answer for ${span(Date.now() - heard)}` : late ? 'no answer' : 'asking');
}

function showFacts() {
  const { report, cluster } = store;
  const facts = [['node', report.node], ['view', cluster.starting ? 'starting' : cluster.view], ['leader', cluster.leader || 'none'], ['epoch', String(cluster.epoch)], ['rules', cluster.rules_version ? `version ${cluster.rules_version}` : 'none']];
  keyed(byId('facts'), facts, (f) => f[0], ([name]) => make('span', {}, `${name} `, make('b')), (e, [, value]) => setText(e.lastChild, value));
  setText(document.querySelector('title'), `${shown(byId('main').querySelector('h2').textContent.trim())} – ${report.node} – rlnode`);
}

// A page that nobody sees asks nothing. What happened meanwhile is a gap.
document.addEventListener('visibilitychange', () => {
  clearTimeout(timer);
  live = false;
  if (document.hidden) {
    store.meter.pause();
    setClass(byId('pulse'), 'pulse');
    setText(byId('pulse-text'), 'paused');
  } else {
    since = Date.now();
    tick();
  }
});
token.used = () => {
  clearTimeout(timer);
  since = Date.now();
  refused = '';
  tick();
};
addEventListener('hashchange', () => enter(true));
addEventListener('beforeunload', (event) => { if (store.drafts.size) event.preventDefault(); });
setInterval(() => document.hidden || show(), pace); // an answer that does not come is noticed, too
enter(false);
tick();
