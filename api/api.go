package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// API serves both planes of a node.
type API struct {
	config    Config
	log       *slog.Logger
	readiness readiness
	tokens    *tokens
	plane     *dataPlane
	data      *dataServer
	admin     *adminServer
	dataAddr  net.Addr

	mu       sync.Mutex // serialises Close
	closed   bool
	closeErr error
}

// Open binds both planes and begins to answer. Checks are 503 not-ready until Ready.
func Open(config Config) (*API, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("open API: %w", err)
	}
	a := &API{config: config, log: config.Logger}
	a.readiness.condition = config.Condition
	if a.log == nil {
		a.log = slog.Default()
	}
	var err error
	if a.tokens, err = openTokens(&a.config, a.log); err != nil {
		return nil, fmt.Errorf("open API: %w", err)
	}
	if err := a.listen(); err != nil {
		a.tokens.close()
		return nil, err
	}
	return a, nil
}

// listen binds both planes and begins to serve them.
func (a *API) listen() error {
	config := &a.config
	a.plane = &dataPlane{
		decider:   config.Decider,
		node:      appendString(nil, config.Node),
		tokens:    a.tokens,
		readiness: &a.readiness,
		health:    a.health,
		log:       a.log,
		tracer:    config.Tracer,
	}
	var secure *tls.Config
	if config.CertFile != "" {
		certs, err := loadCertificate(config.CertFile, config.KeyFile, a.log)
		if err != nil {
			return fmt.Errorf("open API: %w", err)
		}
		secure = certs.config()
	}
	data, err := net.Listen("tcp", config.DataAddr)
	if err != nil {
		return fmt.Errorf("open data plane: %w", err)
	}
	admin, err := net.Listen("tcp", config.AdminAddr)
	if err != nil {
		return errors.Join(fmt.Errorf("open admin plane: %w", err), data.Close())
	}
	a.dataAddr = data.Addr()
	a.data = serveData(a.plane, data, secure, config.ReadTimeout)
	a.admin = serveAdmin(a, admin, secure)
	return nil
}

// DataAddr is where the data plane listens.
func (a *API) DataAddr() net.Addr { return a.dataAddr }

// AdminAddr is where the admin plane listens.
func (a *API) AdminAddr() net.Addr { return a.admin.addr }

// Explain tells callers why the node is not ready yet: a few words, such as "loading counters". It has no effect
// after Ready.
func (a *API) Explain(reason string) {
	a.readiness.advance(condition{state: stateStarting, reason: reason})
}

// Ready lets checks in. Without rules in force there is nothing to decide them by, and the node stays not ready.
func (a *API) Ready() {
	if a.config.Decider.Rules() == nil {
		a.log.Error("not ready: no rules in force")
		a.Explain("there are no rules in force")
		return
	}
	a.readiness.advance(condition{state: stateReady})
}

// Drain answers readiness probes with 503 draining from now on; checks go on. Those that are held back are answered now.
func (a *API) Drain() {
	a.readiness.advance(condition{state: stateDraining, since: time.Now()})
	a.data.waiting.end()
}

// Close drains, stops taking connections, waits for the requests under way until ctx ends, and closes what is left.
// A later call returns what the first did.
func (a *API) Close(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.closeErr
	}
	a.closed = true
	a.Drain()
	// The data plane first: while its last checks are decided, the admin plane still tells how the node is.
	a.closeErr = errors.Join(a.data.close(ctx), a.admin.close(ctx))
	a.tokens.close()
	return a.closeErr
}
