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
	data      *dataServer  // nil: no data plane
	admin     *adminServer // nil: no admin plane
	dataAddr  net.Addr     // nil: no data plane

	mu       sync.Mutex // serializes Close
	closed   bool
	closeErr error
}

// Open binds the planes and starts to answer. Checks get 503 not-ready until Ready.
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

// listen binds the configured planes and starts to serve them.
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
		slow:      config.slow,
	}
	var secure *tls.Config
	if config.CertFile != "" {
		pair, err := loadCertificate(config.CertFile, config.KeyFile, a.log)
		if err != nil {
			return fmt.Errorf("open API: %w", err)
		}
		secure = serverTLS(pair)
	}
	var data, admin net.Listener
	var err error
	if config.DataAddr != "" {
		if data, err = net.Listen("tcp", config.DataAddr); err != nil {
			return fmt.Errorf("open data plane: %w", err)
		}
	}
	if config.AdminAddr != "" {
		if admin, err = net.Listen("tcp", config.AdminAddr); err != nil {
			err = fmt.Errorf("open admin plane: %w", err)
			if data != nil {
				err = errors.Join(err, data.Close())
			}
			return err
		}
	}
	if data != nil {
		a.dataAddr = data.Addr()
		a.data = serveData(a.plane, data, secure, config.ReadTimeout)
	}
	if admin != nil {
		a.admin = serveAdmin(a, admin, secure)
	}
	return nil
}

// DataAddr returns where the data plane listens; nil: there is none.
func (a *API) DataAddr() net.Addr { return a.dataAddr }

// AdminAddr returns where the admin plane listens; nil: there is none.
func (a *API) AdminAddr() net.Addr {
	if a.admin == nil {
		return nil
	}
	return a.admin.addr
}

// Explain tells callers in a few words, such as "loading counters", why the node is not ready yet. It has no effect
// after Ready.
func (a *API) Explain(reason string) {
	a.readiness.advance(condition{state: stateStarting, reason: reason})
}

// Ready lets checks in. Without rules in force there is nothing to decide by, and the node stays not ready.
func (a *API) Ready() {
	if a.config.Decider.Rules() == nil {
		a.log.Error("not ready: no rules in force")
		a.Explain("there are no rules in force")
		return
	}
	a.readiness.advance(condition{state: stateReady})
}

// Drain makes readiness probes get 503 draining; checks are still decided. Answers that are held back are sent now.
func (a *API) Drain() {
	a.readiness.advance(condition{state: stateDraining, since: time.Now()})
	if a.data != nil {
		a.data.waiting.end()
	}
}

// Close drains, stops accepting connections, waits for the requests in progress until ctx ends, and closes what is
// left. A later call returns what the first did.
func (a *API) Close(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.closeErr
	}
	a.closed = true
	a.Drain()
	// The data plane first: while its last checks are decided, the admin plane still reports the node's state.
	if a.data != nil {
		a.closeErr = a.data.close(ctx)
	}
	if a.admin != nil {
		a.closeErr = errors.Join(a.closeErr, a.admin.close(ctx))
	}
	a.tokens.close()
	return a.closeErr
}
