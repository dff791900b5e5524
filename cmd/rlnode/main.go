package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"reflect"
	"syscall"
	"time"
	_ "time/tzdata" // for TZ in log lines if the system has no zones; calendars have their own database

	"github.com/alecthomas/kong"

	"github.com/rlnode/rlnode/node"
	"github.com/rlnode/rlnode/rules/document"
)

func main() {
	restrictUmask()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program: it parses args, runs the command and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		args = []string{"--help"}
	}

	switch args[0] {
	case "help":
		args = append(args[1:len(args):len(args)], "--help")
	case "--version":
		args = append([]string{"version"}, args[1:]...)
	}

	helped := false // kong has printed the help, and would otherwise continue
	var flags cli
	config := &configFile{}
	parser, err := kong.New(&flags,
		kong.Name("rlnode"),
		kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		kong.Resolvers(config),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.Vars{"host": node.DefaultName()},
	)
	if err != nil {
		return printError(stderr, fmt.Errorf("build the command line: %w", err))
	}

	addHelp(parser.Model.Node, "", splitHelp())
	if args[0] == completeWord {
		return printError(stderr, complete(stdout, parser.Model.Node, args[1:]))
	}

	command, err := parser.Parse(args)
	if helped {
		return exitOK
	}

	if err != nil {
		help := "rlnode --help"
		hint := hintUsage(err)
		if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context.Selected() != nil {
			help = typedPath(parse.Context.Selected()) + " --help"
		}
		if mistake, ok := errors.AsType[configError](err); ok {
			err = mistake
		}
		return printError(stderr, usageError("%w%s (see %s)", config.prefixOrigins(err), hint, help))
	}

	if err := checkEmpty(command); err != nil {
		return printError(stderr, usageError("%w (see %s --help)", err, typedPath(command.Selected())))
	}

	env := &environment{
		ctx: ctx, args: args, stdin: stdin, stdout: stdout, stderr: stderr,
		terminal: isTerminal(stdin) && isTerminal(stdout),
	}
	if command.Selected().Name != "serve" {
		var stop context.CancelFunc
		env.ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(env.ctx, stop) // a second signal kills
		env.stdin = &stoppableReader{env.ctx, stdin}
	}

	return printError(stderr, config.prefixOrigins(command.Run(env)))
}

// decodeDuration reads a flag's duration as the rules do, with days.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	v, err := document.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	target.SetInt(int64(v))
	return nil
}

// printError prints an error and returns its exit code.
func printError(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	code := exitFailed
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
		if e.err == nil {
			return code
		}
	}
	fmt.Fprintf(stderr, "%s %v\n", colours(stderr).paint(red, "rlnode:"), err)
	return code
}
