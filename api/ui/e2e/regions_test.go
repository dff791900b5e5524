//go:build browser

package e2e

import "testing"

// showsRegions tests how the page shows regions; this cluster has only one.
func showsRegions(t *testing.T, s *site) {
	have := s.eval(`Promise.all([import('./trouble.js'), import('./usage.js')]).then(([trouble, usage]) => {
		const out = [];
		const away = trouble.troubles({view: 'connected', leader: 'n1', members: [], regions: [{name: 'eu', primary: true, reachable: false}, {name: 'us', reachable: true}]}, null, {});
		out.push(away.map(([kind, key]) => kind + ' ' + key));
		const limit = {name: 'r', share: 300, used: 320, own: 300, lent: 20, borrowed: 0, remaining: 0};
		out.push(usage.sharesOf({regions: {us: {reachable: false}, eu: {reachable: true, limits: [limit]}}}).map(l => l.name + ': ' + l.text));
		return JSON.stringify(out);
	})`)
	want := `[["warn regions"],["eu: share 300 · used 300 · lent 20 · 0 left","us: not reachable from here"]]`
	if have != want {
		t.Errorf("have %v, want %s", have, want)
	}
}
