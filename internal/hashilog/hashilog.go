// Package hashilog lets HashiCorp's libraries log to a slog.Logger.
package hashilog

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// New returns a logger for HashiCorp's libraries that writes to log. Their
// trace level becomes debug.
func New(log *slog.Logger) hclog.Logger {
	level := hclog.Error
	for _, l := range []hclog.Level{hclog.Warn, hclog.Info, hclog.Debug} {
		if log.Enabled(context.Background(), slogLevel(l)) {
			level = l
		}
	}
	// The library's own output is discarded; the sink gets the same lines
	// before they are formatted.
	out := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: level})
	out.RegisterSink(sink{log})
	return out
}

type sink struct{ log *slog.Logger }

// Accept passes on one log line.
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	var pairs []any // a copy, because args belongs to the caller
	if name != "" {
		pairs = append(pairs, "part", name)
	}
	for _, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			// The argument is a format and its values.
			a = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		pairs = append(pairs, a)
	}
	s.log.Log(context.Background(), slogLevel(level), msg, pairs...)
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace, hclog.Debug:
		return slog.LevelDebug
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	}
	return slog.LevelInfo
}
