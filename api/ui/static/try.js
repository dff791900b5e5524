// Trying a check: what would it be answered now?
import { byId, make, noEnd, number, shown, span } from './dom.js';
import { Choice } from './choice.js';
import { denialText } from './entries.js';
import { get, post, subject } from './node.js';
import { ruleNamed } from './store.js';

const mostRules = 8; // that are asked whether they block

export class Try {
  constructor() {
    this.choice = new Choice('try');
    this.form = byId('try');
    this.result = byId('try-result');
    this.asked = 0; // how often; answers to earlier questions are not shown
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.ask();
    });
    this.form.addEventListener('change', () => this.arrange());
    this.arrange();
  }

  get by() { return this.form.elements.by.value; }

  arrange() {
    for (const by of ['attributes', 'key', 'limits']) byId(`try-by-${by}`).hidden = this.by !== by;
  }

  // check is what the form asks. The error says what is wrong with it.
  check() {
    const c = { detail: true, peek: !byId('try-take').checked };
    if (this.by === 'key') {
      c.rule = this.choice.rule;
      const key = this.choice.key;
      if (key.length) c.key = key;
    } else if (this.by === 'limits') {
      const namespace = byId('try-namespace').value.trim();
      if (namespace) c.namespace = namespace;
      c.key = byId('try-key').value;
      c.limits = limitsOf(byId('try-limits').value, byId('try-unit').value.trim());
    } else c.attributes = attributes(byId('try-attributes').value);
    const cost = byId('try-cost').value.trim();
    const unit = byId('try-unit').value.trim();
    if (cost !== '' || (unit && unit !== 'requests')) {
      if (!/^\d{1,16}$/.test(cost)) throw new Error('Cost must be a whole number, 0 or more.');
      if (!Number.isSafeInteger(Number(cost))) throw new Error(`Cost must be at most ${number(Number.MAX_SAFE_INTEGER)}.`);
      if (unit && unit !== 'requests') c.costs = { [unit]: Number(cost) };
      else c.cost = Number(cost);
    }
    return c;
  }

  async ask() {
    const asked = ++this.asked;
    try {
      const check = this.check();
      const told = await post('v1/try', check);
      const more = await this.more(told, check);
      if (asked === this.asked && this.result.isConnected) this.tell(told, check, more);
    } catch (e) {
      if (asked === this.asked) this.result.replaceChildren(make('p', { class: 'bad-text' }, e.message));
    }
  }

  // more asks what the answer leaves out: until when a list denies the check, and which rules block its subjects for how long.
  async more({ answer, rules }, check) {
    const given = Object.fromEntries(Object.entries(check.attributes ?? {}).map(([name, value]) => [name, String(value)]));
    if (answer.code === 'denied' && answer.decided_by === 'list') return { denied: await denialText(given), blocks: [] };
    if (answer.allowed || !check.attributes) return { denied: '', blocks: [] };
    const keyed = (rules ?? []).filter((r) => r.applies && ruleNamed(r.rule)?.key?.length).slice(0, mostRules).map(({ rule }) => ({ rule, key: keyOf(ruleNamed(rule), given) }));
    const told = await Promise.all(keyed.map(({ rule, key }) => get(`v1/usage?${subject(rule, key)}`).catch(() => null)));
    return { denied: '', blocks: told.filter((u) => u?.blocked_until_ms > Date.now()).map((u) => ({ rule: u.rule, left: u.blocked_until_ms === noEnd ? Infinity : u.blocked_until_ms - Date.now() })) };
  }

  tell({ status, headers, answer, rules }, check, { denied, blocks }) {
    const retry = Math.max(answer.retry_after_ms ?? 0, ...blocks.filter((b) => !ruleNamed(b.rule)?.shadow).map((b) => b.left));
    const facts = make('dl');
    const fact = (name, value) => facts.append(make('dt', {}, name), make('dd', {}, value));
    if (answer.used > answer.limit) fact('used', `${number(answer.used)} ${answer.unit}`);
    if (answer.limit !== undefined) fact('left', `${number(answer.remaining)} of ${number(answer.limit)} ${answer.unit}, limit of rule ${answer.rule}`);
    if (denied) fact('denied', denied);
    else if (answer.retry_after_ms < 0 || retry === Infinity) fact('retry', 'never');
    else if (retry) fact('retry', `in ${span(retry)}`);
    for (const b of blocks) fact('blocked', `by ${shown(b.rule)} ${b.left === Infinity ? 'without an end' : `for another ${span(b.left)}`}`);
    if (answer.delay_ms) fact('delay', span(answer.delay_ms));
    fact('decided by', `${answer.decided_by}, at ${answer.node}, rules version ${answer.rules_version}`);
    this.result.replaceChildren(
      make('p', { class: `verdict ${answer.allowed ? 'good-text' : 'bad-text'}` }, answer.allowed ? 'Allowed' : 'Refused'),
      make('p', { class: 'muted' }, check.peek ? `A check would get ${status}. Nothing was taken.` : `The check got ${status}${answer.allowed ? ', and was taken.' : '. A refused check takes nothing.'}`),
      answer.detail ? make('p', {}, answer.detail) : '',
      facts, limits(answer.limits ?? []), reasons(rules ?? []), raw(status, headers));
  }
}

// keyOf is the key that a rule makes of attributes: of alternatives, the first that is there, with its name.
const keyOf = (rule, given) => rule.key.map((part) => {
  const names = [part].flat();
  const name = names.find((one) => given[one]) ?? names[0];
  return names.length > 1 ? `${name}=${given[name]}` : given[name] ?? '';
});

// attributes reads lines of name=value.
function attributes(text) {
  const out = Object.create(null);
  for (const line of text.split('\n')) {
    if (!line.trim()) continue;
    const at = line.indexOf('=');
    if (at < 1) throw new Error(`“${line.trim().slice(0, 60)}” is not name=value.`);
    const name = line.slice(0, at).trim();
    if (name in out) throw new Error(`“${name}” is given twice.`);
    out[name] = line.slice(at + 1).trim();
  }
  if (!Object.keys(out).length) throw new Error('Give at least one attribute, such as ip=198.51.100.7.');
  return out;
}

// limitsOf reads lines of limit/window, in that unit.
function limitsOf(text, unit) {
  const out = [];
  for (const line of text.split('\n')) {
    if (!line.trim()) continue;
    const [limit, per, more] = line.split('/').map((part) => part.trim());
    if (!/^\d{1,15}$/.test(limit) || !per || more !== undefined) throw new Error(`“${line.trim().slice(0, 60)}” is not a limit such as 5/1m.`);
    out.push(unit ? { limit: Number(limit), per, unit } : { limit: Number(limit), per });
  }
  if (!out.length) throw new Error('Give at least one limit, such as 5/1m.');
  return out;
}

function limits(list) {
  if (!list.length) return '';
  const rows = list.map((l) => make('tr', {},
    make('td', {}, l.rule, make('small', {}, [l.name === l.rule ? '' : l.name, l.algorithm, l.shadow ? 'shadow' : ''].filter(Boolean).join(' · '))),
    make('td', { class: 'num' }, `${number(l.remaining)} of ${number(l.limit)}`, make('small', {}, l.unit)),
    make('td', { class: `num ${l.allowed ? 'good-text' : 'bad-text'}` }, l.allowed ? 'allows' : 'refuses')));
  return make('table', {}, make('caption', { class: 'hidden' }, 'Limits that were looked at'),
    make('thead', {}, make('tr', {}, make('th', { scope: 'col' }, 'Limit'), make('th', { scope: 'col', class: 'num' }, 'Left'), make('th', { scope: 'col', class: 'num' }, 'Says'))),
    make('tbody', {}, ...rows));
}

// reasons say of each rule whether it applies, and which condition fails if not.
function reasons(list) {
  if (!list.length) return '';
  const ordered = [...list].sort((a, b) => b.applies - a.applies).slice(0, 50);
  const items = ordered.map((r) => make('li', {}, make('b', {}, shown(r.rule)), r.applies ? make('span', { class: 'good-text' }, ' applies') : ' does not apply',
    ...(r.why ?? []).map((text) => make('small', {}, shown(text, 400)))));
  if (list.length > ordered.length) items.push(make('li', {}, `and ${list.length - ordered.length} more`));
  return make('div', {}, make('h4', {}, 'Rules'), make('ul', { class: 'list' }, ...items));
}

function raw(status, headers) {
  const list = make('dl', { class: 'mono' });
  for (const [name, value] of Object.entries(headers)) list.append(make('dt', {}, name), make('dd', {}, value));
  return make('details', {}, make('summary', {}, `Status ${status} and headers`), list);
}
