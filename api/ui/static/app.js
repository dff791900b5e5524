// The page: asks its node each second while somebody looks, and shows what it hears.
import { byId, keyed, make, setClass, setText, span } from './dom.js';
import { Meter } from './rates.js';
import { get, getLarge } from './node.js';
import { showNow, whose } from './now.js';
import { showHour } from './hour.js';
import { showMembers, showRegions, troubles } from './members.js';
import { showRules } from './rules.js';
import { showTop, topShown } from './top.js';
import { Subject } from './subject.js';
import { Try } from './try.js';
import { token } from './token.js';

const pace = 1000; // milliseconds from question to question
const rulesPace = 5000; // milliseconds until the rules are asked for again
const hourPace = 15000; // milliseconds until the last hour is asked for again
const refusedPace = 10000; // milliseconds until a question is asked again that the token does not allow
const lateAfter = 3000; // milliseconds without an answer

const meter = new Meter();
const subject = new Subject();
const trial = new Try();
let report = null; // the last of /v1/activity
let cluster = null; // and of /v1/cluster
let doc = null; // the rules in force
let asking = false; // for the rules
let askAgain = 0; // when, after they were not told
let factors = new Map(); // what adaptive rules multiply by, by name
let hourAt = 0; // when the last hour was asked for
let heard = 0; // when the last answer came; 0: none yet
let since = Date.now(); // when the page began to wait for answers
let live = false; // the last questions were answered, and none is overdue
let refused = ''; // why the token is not enough; empty: it is
let turn = 0;
let timer = 0;

async function tick() {
  if (token.asked) return show(); // the form goes on
  const began = Date.now();
  const mine = ++turn;
  const questions = [
    get('v1/activity').then(hearActivity),
    get('v1/cluster').then((c) => { cluster = c; }),
  ];
  if (turn % 2) questions.push(get(`v1/top?by=recent&n=${topShown}`).then((top) => showTop(top, (rule, key) => subject.show(rule, key))), subject.refresh());
  if (turn % 2 && doc?.rules?.some((r) => r.adaptive)) questions.push(get('v1/load').then((l) => { factors = new Map(l.rules.map((r) => [r.rule, r.factor])); }));
  if (began - hourAt > hourPace) questions.push(get('v1/history?n=60').then((h) => { hourAt = began; showHour(h); }));
  const outcomes = await Promise.allSettled(questions);
  if (document.hidden || mine !== turn) return; // nobody looks, or the page has asked anew since
  refused = outcomes.find((o) => o.reason?.status === 403)?.reason.message ?? '';
  live = outcomes[0].status === 'fulfilled' && outcomes[1].status === 'fulfilled';
  if (live) heard = Date.now();
  else if (report) meter.gap();
  if (!refused) askRules();
  show();
  clearTimeout(timer);
  if (!token.asked) timer = setTimeout(tick, Math.max(100, (refused ? refusedPace : pace) - (Date.now() - began)));
}

function hearActivity(r) {
  if (report && whose(r.nodes) !== whose(report.nodes)) hourAt = 0; // others are in the hour, too
  meter.push(r);
  report = r;
}

// askRules asks for the rules when there is another version of them.
async function askRules() {
  if (!cluster?.rules_version || asking || Date.now() < askAgain || doc?.rules_version === cluster.rules_version) return;
  asking = true;
  const version = cluster.rules_version;
  try {
    const next = await getLarge('v1/rules');
    next.rules_version = version;
    doc = next;
    subject.choice.use(doc);
    trial.choice.use(doc);
    show();
  } catch {
    askAgain = Date.now() + rulesPace;
  } finally {
    asking = false;
  }
}

function show() {
  const late = !token.asked && !refused && Date.now() - Math.max(heard, since) > lateAfter;
  if (report && cluster) {
    showFacts();
    showNow(meter, report);
    showMembers(cluster, report, meter);
    showRegions(cluster);
    showRules(doc, meter, choose, factors);
  }
  const list = late || token.asked || !cluster || !report ? [] : troubles(cluster, report, meter);
  if (refused) list.push(['bad', 'refused', `The node refuses to tell more: ${refused}.`]);
  if (late && heard) list.push(['bad', 'stale', `No answer from ${report.node} since ${new Date(heard).toLocaleTimeString('en-GB')}. What you see is from then; it goes on by itself when the node is back.`]);
  if (late && !heard) list.push(['bad', 'stale', 'The node does not answer yet.']);
  keyed(byId('notices'), list, (n) => n[1], () => make('p'), (e, [kind, , text]) => {
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
  const facts = [['node', report.node], ['view', cluster.starting ? 'starting' : cluster.view], ['leader', cluster.leader || 'none'], ['epoch', String(cluster.epoch)], ['rules', cluster.rules_version ? `version ${cluster.rules_version}` : 'none']];
  keyed(byId('facts'), facts, (f) => f[0], ([name]) => make('span', {}, `${name} `, make('b')), (e, [, value]) => setText(e.lastChild, value));
  setText(document.querySelector('title'), `${report.node} – rlnode`);
}

// choose puts a rule into both forms.
function choose(name) {
  subject.choice.set(name);
  trial.set(name);
  byId('subject-keys').querySelector('input')?.focus();
  byId('subject').scrollIntoView({ block: 'center' });
}

byId('rules-filter').addEventListener('input', () => showRules(doc, meter, choose, factors));

// A page that nobody sees asks nothing. What happened meanwhile is a gap.
document.addEventListener('visibilitychange', () => {
  clearTimeout(timer);
  live = false;
  if (document.hidden) {
    meter.pause();
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
  tick();
};
setInterval(() => document.hidden || show(), pace); // an answer that does not come is noticed, too
tick();
