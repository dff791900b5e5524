package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/node"
	"github.com/rlnode/rlnode/rules/document"
)

// Run runs a node until a signal arrives.
func (c *serveCmd) Run(env *environment) error {
	if err := checkSecretsGiven(env.args); err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	if err := c.complete(); err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	// The channel has room for two signals: one to stop gracefully, and a
	// second to stop at once.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	config := c.config()
	config.Logger = c.logger(env.stderr)
	c.warn(config.Logger, os.Environ())
	warnSecrets(config.Logger, env.args)

	if err := c.checkFiles(config.Logger); err != nil {
		return err
	}
	if err := c.checkFounders(config.Logger); err != nil {
		return err
	}

	files := raiseFileLimit()
	config.Ready = func(n *node.Node) { c.logHints(config.Logger, env.stderr, n, files) }
	if c.OTLPEndpoint != "" {
		tracing.LogFailures(config.Logger)
	}
	if c.Rules != "" { // refuse a file with mistakes even if the cluster already has rules: the user meant to use it
		doc, err := loadRules(env, c.Rules, document.Parse, env.stderr, io.Discard)
		if err != nil {
			return err
		}
		config.Rules = doc.YAML()
		config.RulesFrom = c.Rules
	}
	return c.explainListenError(serve(env.ctx, config, signals))
}

// serve starts the node, waits for a signal and stops it. Starting and stopping
// each run in a goroutine, so that serve notices signals meanwhile. The first
// signal during the start, or the second during the stop, ends the program at
// once. Like after a crash, every file stays valid.
func serve(ctx context.Context, config node.Config, signals <-chan os.Signal) error {
	log := config.Logger
	var n *node.Node
	started := make(chan error, 1)
	go func() {
		var err error
		n, err = node.Start(context.Background(), config)
		started <- err
	}()

	select {
	case err := <-started:
		if err != nil {
			return err
		}
	case sig := <-signals:
		log.Info("stopped before it was ready", "signal", sig.String())
		return nil
	}

	select {
	case sig := <-signals:
		log.Info("stopping", "signal", sig.String())
	case <-ctx.Done():
		log.Info("stopping")
	}

	stopped := make(chan error, 1)
	go func() { stopped <- n.Close() }()

	select {
	case err := <-stopped:
		return err
	case sig := <-signals:
		log.Warn("stopping at once", "signal", sig.String())
		return &exitError{code: exitFailed}
	}
}
