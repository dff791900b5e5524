package main

import (
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/grpclog"
)

// adaptGRPC makes gRPC, which carries the calls between nodes, log to log. It keeps one logger for the whole process, and
// has to be told before anything of it is used.
func adaptGRPC(log *slog.Logger) { grpclog.SetLoggerV2(grpcLogger{log.With("from", "grpc")}) }

// grpcLogger is a grpclog.LoggerV2. What gRPC calls an error or a warning is, most of the time, a connection that
// failed: who asked for it is told of that, and says it in the node's own words. So its lines are for those who look
// for a mistake, and the rest is dropped.
type grpcLogger struct{ log *slog.Logger }

func (grpcLogger) Info(...any)          {}
func (grpcLogger) Infoln(...any)        {}
func (grpcLogger) Infof(string, ...any) {}

func (g grpcLogger) Warning(args ...any)                 { g.log.Debug(fmt.Sprint(args...)) }
func (g grpcLogger) Warningln(args ...any)               { g.log.Debug(line(args)) }
func (g grpcLogger) Warningf(format string, args ...any) { g.log.Debug(fmt.Sprintf(format, args...)) }
func (g grpcLogger) Error(args ...any)                   { g.log.Debug(fmt.Sprint(args...)) }
func (g grpcLogger) Errorln(args ...any)                 { g.log.Debug(line(args)) }
func (g grpcLogger) Errorf(format string, args ...any)   { g.log.Debug(fmt.Sprintf(format, args...)) }

// After these gRPC ends the process itself.
func (g grpcLogger) Fatal(args ...any)                 { g.log.Error(fmt.Sprint(args...)) }
func (g grpcLogger) Fatalln(args ...any)               { g.log.Error(line(args)) }
func (g grpcLogger) Fatalf(format string, args ...any) { g.log.Error(fmt.Sprintf(format, args...)) }

// V says that nothing more detailed is wanted.
func (grpcLogger) V(int) bool { return false }

func line(args []any) string { return strings.TrimSuffix(fmt.Sprintln(args...), "\n") }
