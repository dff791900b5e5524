package hashilog

import (
	"log/slog"
	"strings"
	"testing"
)

func TestLogger(t *testing.T) {
	var out strings.Builder
	log := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	log.Debug("quiet")
	log.Named("raft").With("node", 7).Warn("loud", "why", "because")
	for _, want := range []string{"level=WARN", "msg=loud", "part=raft", "node=7", "why=because"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("have %q, want %s", out.String(), want)
		}
	}
	if strings.Contains(out.String(), "quiet") || log.IsDebug() {
		t.Errorf("have %q", out.String())
	}
}
