// The choice of a rule and of the values of its key attributes, which two forms have.
import { byId, make, offer } from './dom.js';
import { keyName } from './rules.js';

export class Choice {
  constructor(prefix) {
    this.select = byId(`${prefix}-rule`);
    this.keys = byId(`${prefix}-keys`);
    this.prefix = prefix;
    this.rules = new Map();
    this.select.addEventListener('change', () => this.ask());
  }

  // use offers the rules of a document, and keeps what was chosen and typed.
  use(doc) {
    this.rules = new Map((doc.rules ?? []).map((r) => [r.name, r]));
    offer(this.select, [...this.rules.keys()].map((name) => [name]));
    this.ask();
  }

  // ask shows a field for each key attribute of the rule.
  ask() {
    const names = this.rules.get(this.select.value)?.key ?? [];
    const typed = new Map([...this.keys.querySelectorAll('input')].map((i) => [i.name, i.value]));
    this.keys.replaceChildren(...names.map(keyName).map((name) => {
      const input = make('input', { name, autocomplete: 'off', spellcheck: 'false', autocapitalize: 'none' });
      input.value = typed.get(name) ?? '';
      return make('label', {}, name, input);
    }));
  }

  set(rule, key) {
    if (!this.rules.has(rule)) return false;
    this.select.value = rule;
    this.ask();
    if (key) [...this.keys.querySelectorAll('input')].forEach((input, i) => { input.value = key[i] ?? ''; });
    return true;
  }

  get rule() { return this.select.value; }
  get key() { return [...this.keys.querySelectorAll('input')].map((i) => i.value); }
}
