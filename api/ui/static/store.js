// What the page knows, for all of its parts.
import { Meter } from './rates.js';

export const store = {
  meter: new Meter(),
  report: null, // the last of /v1/activity
  cluster: null, // and of /v1/cluster
  doc: null, // the rules in force, with rules_version
  factors: new Map(), // what adaptive rules multiply by, by name
  since: new Map(), // since when members have failed, by name
  troubles: [], // what is wrong, the worst first
  drafts: new Map(), // edits that are not applied, by address: {what, text}
  me: null, // who changes are recorded as, and the scopes: /v1/whoami
};

// ruleNamed returns a rule in force, or undefined.
export const ruleNamed = (name) => store.doc?.rules?.find((r) => r.name === name);
