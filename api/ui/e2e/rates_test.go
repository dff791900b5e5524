//go:build browser

package e2e

import "testing"

// computesRates tests the page's arithmetic by itself.
func computesRates(t *testing.T, s *site) {
	have := s.eval(`import('./rates.js').then(({Meter, kept}) => {
		const report = (at, process, n, more) => ({at_ms: at, nodes: [{id: 'a', process, answered: true, allowed: n, refused: 0}, ...(more ?? [])],
			checks: {allowed: {owner: n}, refused: {lease: n / 10}}, rules: [{rule: 'r', checks: {allowed: {owner: n}}}]});
		const m = new Meter(), out = [];
		const push = (...args) => out.push(m.push(report(...args)) ? [m.rates.checks, m.rates.refused, m.rules.get('r').rate.checks] : null);
		push(1000, 'p', 1000);
		push(3000, 'p', 2000);                                    // 500 and 50 a second, over two seconds
		push(3000, 'p', 2000);                                    // the same reading again
		push(4000, 'q', 10);                                      // a restart: no rate, and none below zero
		push(5000, 'q', 110);
		push(6000, 'q', 900, [{id: 'b', process: 'z', answered: true, allowed: 5, refused: 0}]); // a node came: its counts are no rate
		push(60000, 'q', 901, [{id: 'b', process: 'z', answered: true, allowed: 5, refused: 0}]); // too long ago
		for (let i = 0; i < 500; i++) m.gap();
		out.push(m.history.length === kept && m.history.every(h => h === null));
		return JSON.stringify(out);
	})`)
	if want := `[null,[550,50,500],null,null,[110,10,100],null,null,true]`; have != want {
		t.Errorf("have %v, want %s", have, want)
	}
}
