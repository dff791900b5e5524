// One subject: what it has used, what is written about it, and what can be done.
import { byId, make, noEnd, number, offer, percent, setText, shown, span } from './dom.js';
import { subjectAddress } from './address.js';
import { Choice } from './choice.js';
import { change } from './confirm.js';
import { changeEntry, denialText, entriesAbout, listed, tierOf, untilCell } from './entries.js';
import { get, post, send, subject, target } from './node.js';
import { button, onSubmit, rows, say, subjectLink } from './parts.js';
import { report } from './rule.js';
import { ruleNamed, store } from './store.js';
import { showUsage, slotText } from './usage.js';

const topShown = 15;
const mostOthers = 6; // rules that are asked about the same values
const slowPace = 5; // turns from question to question about what is written

let asked = null; // the rule and key that are shown; null: none
let choice = null;
let turns = 0;
let shape = ''; // what the forms were made for
let usage = null; // the last that was told
let lookUps = 0; // how often the node was asked what a subject has used
let lifted = null; // the last block that was lifted here: of what, and after how many look-ups

export const subjects = {
  open([rule, ...key]) {
    asked = rule === undefined ? null : { rule, key };
    [turns, shape, usage] = [0, '', null];
    choice = new Choice('subject');
    onSubmit(byId('subject'), () => { location.hash = subjectAddress(choice.rule, choice.key); });
    byId('reset-all').addEventListener('click', () => reset());
    byId('unblock').addEventListener('click', unblock);
    byId('false-positive').addEventListener('click', () => report(asked, asked.rule));
    onSubmit(byId('adjust'), () => {});
    byId('adjust').addEventListener('submit', (event) => adjust(event.submitter?.value === 'take' ? -1 : 1));
    onSubmit(byId('act'), act);
    onSubmit(byId('tier'), setTier);
    arrange();
  },

  heardRules() {
    choice.use(store.doc);
    if (asked) {
      const spec = ruleNamed(asked.rule);
      choice.set(asked.rule, asked.key);
      if (spec && spec.key?.length && !asked.key.length) asked = null; // only a rule is chosen
    }
    arrange();
  },

  questions(turn) {
    if (turn % 2 === 0) return [];
    const slow = turns++ % slowPace === 0;
    if (!asked) return [lookAround()];
    if (slow) lookDenied(asked).catch(() => {}); // nobody waits for it; why the node does not answer, the others say
    return slow ? [lookUp(asked), lookAbout(asked), lookElsewhere(asked)] : [lookUp(asked)];
  },
};

function arrange() {
  byId('subject-none').hidden = !!asked;
  byId('subject-one').hidden = !asked;
}

async function lookAround() {
  const [near, refused] = await Promise.all([get('v1/top?by=near&n=100'), get(`v1/top?by=recent&n=${topShown}`)]);
  if (!byId('near')) return;
  const keyOf = (s) => JSON.stringify([s.rule, s.key]);
  rows(byId('near'), near.subjects.filter((s) => !ruleNamed(s.rule)?.shadow).slice(0, topShown), keyOf, (s) => [subjectLink(s.rule, s.key), number(s.used), number(s.limit)], { numbers: [1, 2], empty: 'Nobody has used anything yet.' });
  rows(byId('refused'), refused.subjects, keyOf, (s) => [subjectLink(s.rule, s.key), number(s.recent), number(s.refused)], { numbers: [1, 2], empty: 'Nobody has been refused.' });
}

async function lookUp(mine) {
  const nth = ++lookUps;
  try {
    const next = await get(`v1/usage?${subject(mine.rule, mine.key)}`);
    if (mine !== asked || !byId('subject-result')) return;
    usage = next;
    showUsage(byId('subject-result'), usage, (l) => (l.unlimited ? null : button('Reset', () => reset(l.name), { class: 'plain small', 'aria-label': `Reset ${shown(l.name)}` })), (slot) => button('Free', () => freeSlot(slot), { class: 'plain small', 'aria-label': `Free ${shown(slot)}` }));
    byId('unblock').disabled = !usage.blocked_until_ms;
    sayBlockedAgain(nth);
    makeForms(mine);
  } catch (e) {
    if (mine !== asked || !byId('subject-result')) return;
    byId('subject-result').shape = '';
    byId('subject-result').replaceChildren(make('p', { class: 'bad-text' }, e.message));
  }
}

// sayBlockedAgain corrects what the page says of a block that was lifted, once there is another one. Of the nth look-up, it tells
// whether that was asked after the lift: an earlier one may be answered late, with the block that was lifted.
function sayBlockedAgain(nth) {
  if (lifted?.of !== asked || nth <= lifted.after || !usage.blocked_until_ms) return;
  if (!byId('done').hidden) say(byId('done'), `The block of ${named()} was lifted, and a refusal has begun another one since.`, 'notice');
  lifted = null;
}

// attributesOf are the attributes that the subject of a rule gives a check.
const attributesOf = (spec, key) => Object.fromEntries((spec?.key ?? []).map((part, i) => [[part].flat(), key[i]]).filter(([list, value]) => list.length === 1 && value).map(([[one], value]) => [one, value]));

// lookDenied asks whether checks of the subject are denied, and says so first.
async function lookDenied(mine) {
  const attributes = attributesOf(ruleNamed(mine.rule), mine.key);
  if (!Object.keys(attributes).length) return;
  const { answer } = await post('v1/try', { attributes, peek: true });
  const denied = answer.code === 'denied' && answer.decided_by === 'list' ? await denialText(attributes) : '';
  if (mine !== asked || !byId('subject-denied')) return;
  setText(byId('subject-denied'), denied && `Denied ${denied}: every check of it is refused, whatever it has used.`);
  byId('subject-denied').hidden = !denied;
}

// lookAbout asks what is written about the subject, and how often it was refused.
async function lookAbout(mine) {
  const spec = ruleNamed(mine.rule);
  const [list, recent] = await Promise.all([entriesAbout(spec, mine), get(`v1/top?${new URLSearchParams({ by: 'recent', rule: mine.rule, n: 1000 })}`)]);
  if (mine !== asked || !byId('subject-entries')) return;
  const one = recent.subjects.find((s) => JSON.stringify([s.key].flat()) === JSON.stringify(mine.key));
  setText(byId('subject-refusals'), one ? `Refused ${number(one.recent)} times in the last five minutes, ${number(one.refused)} of ${number(one.checks)} checks since the nodes began.` : 'Not among those refused most.');
  setText(byId('subject-tier'), tierOf(spec, mine.key, list));
  rows(byId('subject-entries'), list, (e) => e.id, (e) => [[e.text, make('small', {}, shown(e.entry.note ?? '', 200))], untilCell(e.entry), null], { empty: 'Nothing.' });
  list.forEach((e, i) => {
    const cell = byId('subject-entries').rows[i].cells[2];
    if (!cell.firstElementChild) cell.append(button('End', () => changeEntry(e, 'DELETE', again), { class: 'plain small', 'aria-label': `End ${e.text}` }));
  });
}

// lookElsewhere asks what the same values have used of other rules with the same key.
async function lookElsewhere({ rule, key }) {
  const mine = asked;
  const keyOf = (r) => JSON.stringify(r?.key ?? []);
  const same = (store.doc?.rules ?? []).filter((r) => key.length && r.name !== rule && keyOf(r) === keyOf(ruleNamed(rule))).slice(0, mostOthers);
  const told = await Promise.all(same.map((r) => get(`v1/usage?${subject(r.name, key)}`)));
  if (mine !== asked || !byId('others')) return;
  const lines = told.flatMap((u) => u.limits.filter((l) => !l.unlimited).map((l) => ({ rule: u.rule, key: u.key, l })));
  byId('others-card').hidden = !lines.length;
  rows(byId('others'), lines, (one) => `${one.rule} ${one.l.name}`, ({ rule: name, key: values, l }) => [
    [make('a', { href: subjectAddress(name, [values].flat()) }, shown(name)), ruleNamed(name)?.shadow ? make('span', { class: 'tag' }, 'shadow') : ''],
    `${number(l.limit)} ${shown(l.unit)}${l.window_ms ? ` in ${span(l.window_ms)}` : ''}`, [percent(l.used, l.share ?? l.limit), make('small', {}, number(l.used))],
  ], { numbers: [2] });
}

function again() {
  turns = 0;
}

// makeForms offers the limits, attributes and tiers that the subject has.
function makeForms({ rule, key }) {
  const next = JSON.stringify([rule, key, usage.limits.map((l) => l.name), store.doc?.rules_version]);
  if (next === shape) return;
  shape = next;
  offer(byId('adjust-limit'), usage.limits.filter((l) => !l.unlimited).map((l) => [l.name, `${l.name}, in ${l.unit}`]));
  const spec = ruleNamed(rule);
  const attributes = (spec?.key ?? []).map((name, i) => [[name].flat(), key[i]]).filter(([names, value]) => names.length === 1 && value);
  offer(byId('act-what'), [['block', `block it in ${rule}`], ...attributes.flatMap(([[name], value]) => ['deny', 'allow'].map((list) => [JSON.stringify([list, name, value]), `${list} ${name}=${value}`]))]);
  const tiers = Object.keys(store.doc?.tiers ?? {});
  byId('tier-card').hidden = !spec?.tiered || !tiers.length || !attributes.length;
  offer(byId('tier-attribute'), attributes.map(([[name], value]) => [JSON.stringify([name, value]), `${name}=${value}`]));
  offer(byId('tier-name'), tiers.map((name) => [name]));
  for (const form of ['adjust', 'act', 'tier']) for (const b of byId(form).querySelectorAll('button')) b.disabled = false;
}

const usageLines = (u, only) => u.limits.filter((l) => !l.unlimited && (!only || l.name === only)).map((l) => `${shown(l.name)}: ${number(l.used)} of ${number(l.share ?? l.limit)} ${shown(l.unit)} used${l.leased ? `, ${number(l.leased)} leased` : ''}`);
const named = () => `${shown(asked.key.join(' · ') || 'the only subject')} of ${shown(asked.rule)}`;

function reset(limit) {
  const mine = asked;
  change({
    title: limit ? `Reset the limit ${shown(limit)}` : 'Reset all limits', button: 'Reset', scope: 'adjust',
    rehearse: async () => {
      const u = await get(`v1/usage?${subject(mine.rule, mine.key)}`);
      const block = u.blocked_until_ms && u.blocked_until_ms !== noEnd && !limit ? [`A block that a refusal began ends, too: it has ${span(Math.max(0, u.blocked_until_ms - Date.now()))} left.`] : [];
      return [`These begin anew for ${named()}:`, ...usageLines(u, limit), ...block];
    },
    make: async () => {
      await post('v1/reset', { ...target(mine.rule, mine.key), ...(limit ? { limit_name: limit } : {}), request_id: crypto.randomUUID?.() });
      return `${limit ? `The limit ${shown(limit)}` : 'Usage'} of ${named()} was reset`;
    },
    done: again,
  });
}

function freeSlot(slot) {
  const mine = asked;
  change({
    title: `Free the slot ${shown(slot)}`, button: 'Free it', scope: 'adjust',
    rehearse: async () => {
      const u = await get(`v1/usage?${subject(mine.rule, mine.key)}`);
      const held = u.limits.flatMap((l) => l.slots ?? []).find((s) => s.slot === slot);
      if (!held) throw new Error('Nobody holds it any more.');
      return [`${slotText(held)}.`, 'Its holder learns of it when it renews the slot. Until then it may go on with what it does.'];
    },
    make: async () => {
      await send('DELETE', `v1/usage?${subject(mine.rule, mine.key)}&${new URLSearchParams({ slot })}`);
      return `The slot ${shown(slot)} of ${named()} is free`;
    },
    done: again,
  });
}

function adjust(sign) {
  const text = byId('adjust-cost').value.trim();
  const limit = byId('adjust-limit').value;
  const wrong = /^\d{1,15}$/.test(text) && Number(text) > 0 ? '' : 'How much must be a whole number above 0.';
  setText(byId('adjust-error'), wrong);
  if (wrong) return byId('adjust-cost').focus();
  const mine = asked;
  const amount = Number(text);
  const verb = sign > 0 ? 'Give' : 'Take';
  return change({
    title: `${verb} ${number(amount)}`, button: verb, scope: 'adjust',
    rehearse: async () => {
      const u = await get(`v1/usage?${subject(mine.rule, mine.key)}`);
      const l = u.limits.find((one) => one.name === limit);
      const after = Math.max(0, l.used - sign * amount);
      return [...usageLines(u, limit), `${named()} will have used ${number(after)}${sign > 0 && amount > l.used ? ': no more can be given than is used' : ''}.`];
    },
    make: async () => {
      const told = await post('v1/adjust', { ...target(mine.rule, mine.key), cost: -sign * amount, limit_name: limit, request_id: crypto.randomUUID?.() });
      const l = told.limits?.find((one) => one.name === limit);
      return `${sign > 0 ? 'Given to' : 'Taken from'} ${named()}: ${number(Math.abs(l?.applied ?? amount))}`;
    },
    done: again,
  });
}

function unblock() {
  const mine = asked;
  changeEntry({ kind: 'block', entry: { rule: mine.rule, key: target(mine.rule, mine.key).key ?? [] }, text: named() }, 'DELETE', async () => {
    again();
    await lookUp(mine);
    lifted = { of: mine, after: lookUps };
  });
}

function act() {
  const what = byId('act-what').value;
  const more = { for: byId('act-for').value || undefined, note: byId('act-note').value.trim() || undefined };
  if (what === 'block') return changeEntry({ kind: 'block', entry: { ...target(asked.rule, asked.key), ...more }, text: named() }, 'POST', again);
  const [list, name, value] = JSON.parse(what);
  return changeEntry(listed(list, name, value, more), 'POST', again);
}

function setTier() {
  const [attribute, value] = JSON.parse(byId('tier-attribute').value);
  const entry = { attribute, value, tier: byId('tier-name').value, note: byId('tier-note').value.trim() || undefined };
  changeEntry({ kind: 'subject', entry, text: `${attribute}=${value}` }, 'PUT', again);
}
