package raftio

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestRaftsLogLinesAreQuiet(t *testing.T) {
	for _, test := range []struct {
		level   hclog.Level
		message string
		want    string
	}{
		{hclog.Info, "entering leader state", "DEBUG"},
		{hclog.Warn, "heartbeat timeout reached, starting election", "DEBUG"},
		{hclog.Error, "failed to heartbeat to", "DEBUG"},
		{hclog.Error, "failed to get log", "WARN"},
	} {
		var b bytes.Buffer
		NewLogger(slog.New(slog.NewTextHandler(&b,
			&slog.HandlerOptions{Level: slog.LevelDebug}))).Log(test.level, test.message, "peer", 7)
		if !strings.Contains(b.String(), "level="+test.want) || !strings.Contains(b.String(), "peer=7") {
			t.Errorf("have %q, want level %s", b.String(), test.want)
		}
		b.Reset()
		NewLogger(slog.New(slog.NewTextHandler(&b, nil))).Log(test.level, test.message)
		if (b.Len() > 0) != (test.want == "WARN") {
			t.Errorf("at level info: have %q of %q", b.String(), test.message)
		}
	}
}
