package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/internal/expect"
)

// exactRules has one rule without leases, whose window does not turn during a test.
func exactRules(limit int) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: year, key: [ip], consistency: exact, limits: [{limit: %d, per: 8760h, algorithm: fixed-window}]}\n", limit)
}

func writeSecrets(t *testing.T, name string, all ...secret.Secret) {
	t.Helper()
	var lines strings.Builder
	for _, s := range all {
		fmt.Fprintln(&lines, s)
	}
	expect.NoError(t, os.WriteFile(name+".new", []byte(lines.String()), 0o600))
	expect.NoError(t, os.Rename(name+".new", name))
}

// TestSecretIsChangedInOneProcess: the nodes reload their secrets three times,
// one node after another, under load. No check fails, is slow or is decided
// without its owner; nothing is forgotten, and the ring stays.
func TestSecretIsChangedInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, next := secret.Secret{1}, secret.Secret{2}
		p := newTestNetwork(t).newCluster("default", "default", 0)
		p.secret = []secret.Secret{old}
		p.startNodes(3, exactRules(1_000_000))
		p.awaitWhole()
		epoch := p.nodes[0].node.cluster.State().Revision
		c := p.startLoad("year", 50, 2)
		for _, secrets := range [][]secret.Secret{{old, next}, {next, old}, {next}} {
			for _, v := range p.nodes {
				writeSecrets(t, v.settings.ClusterSecretFile, secrets...)
				time.Sleep(1500 * time.Millisecond)
			}
		}
		time.Sleep(15 * time.Second) // connections that were not replaced close after ten
		by := c.stopLoad()
		t.Logf("by %v", by)
		if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
			t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
		}
		for i := range c.admitted {
			expect.Equal(t, p.used("year", fmt.Sprintf("k%d", i)), c.admitted[i].Load(), "key %d, used", i)
		}
		for _, v := range p.nodes {
			if have := v.node.protection.file.Fingerprints(); len(have) != 1 || have[0] != next.Fingerprint() {
				t.Errorf("%s uses %v", v.settings.Name, have)
			}
		}
		if have := p.nodes[0].node.cluster.State().Revision; have != epoch {
			t.Errorf("the ring is at revision %d, and was at %d", have, epoch)
		}
	})
}
