package raftio

import (
	"context"
	"log/slog"

	"github.com/hashicorp/go-hclog"

	"github.com/rlnode/rlnode/internal/hashilog"
)

// quietHandler lowers the levels of Raft's log lines. Info lines become debug
// lines. Warnings and most errors repeat with every failed heartbeat or write,
// while gossip, the store and this package report the problem behind them. So
// they become debug lines, too. The remaining errors become warnings.
type quietHandler struct{ slog.Handler }

// NewLogger wraps l for Raft.
func NewLogger(l *slog.Logger) hclog.Logger {
	return hashilog.New(slog.New(quietHandler{l.Handler()}).With("from", "raft"))
}

// loweredLevel returns the level at which to write one of Raft's lines.
func loweredLevel(level slog.Level, message string) slog.Level {
	if level < slog.LevelError {
		return slog.LevelDebug
	}
	switch message {
	case "failed to heartbeat to", "failed to appendEntries to", "failed to make requestVote RPC",
		"failed to make preVote RPC", "failed to make requestPreVote RPC", "failed to install snapshot",
		"failed to send snapshot to", "failed to decode incoming command", "failed to flush response",
		"failed to accept connection", "failed to append to logs", "failed to contact quorum of nodes, stepping down",
		"peer has newer term, stopping replication":
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// Enabled reports whether a line of that level may be written. The final level
// also depends on the message; see Handle.
func (q quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	if level >= slog.LevelError {
		level = slog.LevelWarn
	} else {
		level = slog.LevelDebug
	}
	return q.Handler.Enabled(ctx, level)
}

// Handle writes the line at its lowered level.
func (q quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = loweredLevel(r.Level, r.Message)
	if !q.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs returns a quiet handler with attributes.
func (q quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{q.Handler.WithAttrs(attrs)}
}

// WithGroup returns a quiet handler with a group.
func (q quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{q.Handler.WithGroup(name)}
}
