package node

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

// Each of two living nodes with one name says so, once.
func TestOneNameOfTwoNodesInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log process.Output
		s := newTestNetwork(t)
		s.log = slog.New(slog.NewTextHandler(&log, nil))
		p := s.newCluster("", "", 0)
		p.dir, p.rules = t.TempDir(), exactRules(1000)
		for i := range 3 {
			settings := p.settings(i, 3)
			settings.Name = []string{"n1", "n2", "n2"}[i]
			settings.DataDir += settings.ClusterBind
			p.addNode(settings).startProcess()
		}
		p.awaitWhole()
		time.Sleep(time.Minute)

		lines := strings.Count(log.String(), `level=WARN msg="several living nodes have one name`)
		if lines != 3 {
			t.Errorf("got %d warnings, want one by each node", lines)
		}
	})
}
