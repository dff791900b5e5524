package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/ui"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of the admin plane's server.
const (
	adminHeaderTimeout = 10 * time.Second
	adminReadTimeout   = 60 * time.Second
	adminWriteTimeout  = 60 * time.Second
	adminIdleTimeout   = 3 * time.Minute
	adminHeaderBytes   = 16 << 10
	// adminWrites bounds the writes in progress at once; more wait.
	adminWrites = 4
	// maxProfile bounds how long a profile may run.
	maxProfile = 5 * time.Minute
)

// adminServer serves the admin plane.
type adminServer struct {
	api    *API
	log    *slog.Logger
	addr   net.Addr
	server *http.Server
	pages  *pages
	writes chan struct{} // holds an element for each write in progress
	// exports holds an element for each export in progress.
	exports chan struct{}
	done    chan error // Serve's result
	conns   *connections
}

// connectionKey is the context key of a request's connection.
type connectionKey struct{}

func noteConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, tracked(c))
}

// spared answers one probe on a connection that holds a spare place.
func (s *adminServer) spared(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _ := r.Context().Value(connectionKey{}).(*connection); c != nil && c.spare {
			w.Header().Set("Connection", "close")
			if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
				s.refuse(w, r, errCrowded())
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// endpoint is the handler of one method at one address of the admin plane.
type endpoint struct {
	route string // method and address
	// need lists the scopes of which a token must have at least one. 0: only admin, which may do everything.
	need  Scope
	serve func(http.ResponseWriter, *http.Request) error
}

// endpoints lists all endpoints of the admin plane, except / and /ui, which redirect to /ui/.
func (s *adminServer) endpoints() []endpoint {
	put, get := s.onPiece(s.write), s.onPiece(s.getPiece)
	remove := s.onPiece(func(w http.ResponseWriter, r *http.Request, c rules.Change) error {
		c.Delete = true
		return s.write(w, r, c)
	})
	return []endpoint{
		// Probes, metrics for Prometheus, and the dashboard's files. The page asks the user for a token.
		{"GET /healthz", anyone, s.getHealth},
		{"GET /readyz", anyone, s.getReady},
		{"GET /metrics", anyone, s.metrics()},
		{"GET /ui/", anyone, dashboard(ui.Open())},

		{"GET /v1/rules", ScopeRead, s.getRules},
		{"GET /v1/rules/versions", ScopeRead, s.getVersions},
		{"GET /v1/rules/{name}", ScopeRead, get},
		{"GET /v1/tiers/{name}", ScopeRead, get},
		{"GET /v1/subjects/{attribute}/{value}", ScopeRead, get},
		{"GET /v1/lists/{list}", ScopeRead, get},
		{"GET /v1/cluster", ScopeRead, s.getCluster},
		{"GET /v1/owner", ScopeRead, s.onSubject(s.getOwner)},
		{"GET /v1/usage", ScopeRead, s.onSubject(s.getUsage)},
		{"GET /v1/usage/monthly", ScopeRead, s.getMonthly},
		{"GET /v1/top", ScopeRead, s.getTop},
		{"GET /v1/load", ScopeRead, s.getLoad},
		{"GET /v1/activity", ScopeRead, s.getActivity},
		{"GET /v1/history", ScopeRead, s.getHistory},
		{"GET /v1/level", ScopeRead, s.getLevel},
		{"GET /openapi.yaml", ScopeRead, getOpenAPI},

		// A try takes nothing. One with "peek": false is a check, and needs the scope check.
		{"POST /v1/try", ScopeCheck | ScopeRead, s.try},

		// Reports from gateways and services: they change what is used or allowed, as an adjustment does.
		{"DELETE /v1/usage", ScopeAdjust, s.onSubject(s.deleteUsage)},
		{"POST /v1/load", ScopeAdjust, s.postLoad},
		{"POST /v1/feedback", ScopeAdjust, s.feedback},

		// Changes of rules or members.
		{"PUT /v1/rules", ScopeAdmin, s.putRules},
		{"PUT /v1/rules/{name}", ScopeAdmin, put},
		{"PUT /v1/tiers/{name}", ScopeAdmin, put},
		{"PUT /v1/subjects/{attribute}/{value}", ScopeAdmin, put},
		{"PUT /v1/lists/{list}", ScopeAdmin, put},
		{"DELETE /v1/rules/{name}", ScopeAdmin, remove},
		{"DELETE /v1/tiers/{name}", ScopeAdmin, remove},
		{"DELETE /v1/subjects/{attribute}/{value}", ScopeAdmin, remove},
		{"DELETE /v1/lists/{list}", ScopeAdmin, remove},
		{"POST /v1/leave", ScopeAdmin, s.leave},
		{"POST /v1/level", ScopeAdmin, s.raiseLevel},
		{"DELETE /v1/members/{name}", ScopeAdmin, s.removeMember},
		{"DELETE /v1/regions/{name}", ScopeAdmin, s.removeRegion},

		// Profiles expose memory and slow the node down.
		{"GET /debug/pprof/", ScopeAdmin, s.profile},
	}
}

// serveAdmin starts to serve the admin plane on ln, with TLS if config is not nil.
func serveAdmin(a *API, ln net.Listener, config *tls.Config) *adminServer {
	s := &adminServer{
		api: a, log: a.log, addr: ln.Addr(), writes: make(chan struct{}, adminWrites), exports: make(chan struct{}, maxExports), done: make(chan error, 1),
		conns: newConnections(0, adminPlaces), pages: newPages(ln.Addr(), a.config.AdminHosts),
	}
	s.server = &http.Server{
		Handler:           s.spared(s.handler()),
		ConnContext:       noteConnection,
		ReadHeaderTimeout: cmp.Or(a.config.slow, adminHeaderTimeout),
		ReadTimeout:       cmp.Or(a.config.slow, adminReadTimeout),
		WriteTimeout:      cmp.Or(a.config.slow, adminWriteTimeout),
		IdleTimeout:       cmp.Or(a.config.slow, adminIdleTimeout),
		MaxHeaderBytes:    adminHeaderBytes,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		// Without this, a TLS client would be offered HTTP/2, which the data plane does not speak either.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	ln = s.conns.listen(ln)
	if config != nil {
		ln = tls.NewListener(ln, config)
	}
	go func() { s.done <- s.server.Serve(ln) }()
	return s
}

// close stops accepting connections, waits for the requests in progress until ctx ends, and closes what is left.
func (s *adminServer) close(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("close admin plane: %w", err), s.server.Close())
	}
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	s.conns.closeAll()
	s.conns.wait()
	return err
}

func (s *adminServer) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, m := range byPattern(s.endpoints()) {
		mux.Handle(pattern, s.answer(m))
	}
	mux.Handle("GET /{$}", http.RedirectHandler("ui/", http.StatusTemporaryRedirect))
	mux.Handle("/ui", http.RedirectHandler("ui/", http.StatusTemporaryRedirect))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, errorf(NotFound, "there is nothing at %s", excerpt(strings.ToValidUTF8(r.URL.Path, "�"))))
	})
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := s.pages.refuse(r); e != nil {
			s.refuse(w, r, e)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// guard turns a panic into an answer that reveals nothing about it.
func (s *adminServer) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v) // a handler ends a connection this way; the server handles it
			}
			s.api.plane.panics.Add(1)
			s.log.Error("panic in a handler", "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			s.refuse(w, r, errInternal())
		}()
		next.ServeHTTP(w, r)
	})
}

// methods are the endpoints at one address.
type methods map[string]endpoint

func byPattern(all []endpoint) map[string]methods {
	out := map[string]methods{}
	for _, e := range all {
		method, pattern, _ := strings.Cut(e.route, " ")
		if out[pattern] == nil {
			out[pattern] = methods{}
		}
		out[pattern][method] = e
	}
	return out
}

// answer dispatches by method, if the caller's token permits it.
func (s *adminServer) answer(m methods) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet // net/http leaves the body out
		}
		f, ok := m[method]
		if !ok {
			w.Header().Set("Allow", m.allow())
			s.refuse(w, r, errorf(MethodNotAllowed, "%s takes %s", r.Pattern, m.allow()))
			return
		}
		who, e := s.permit(r, f.need)
		if e != nil {
			s.refuse(w, r, e)
			return
		}
		if err := f.serve(w, who.mark(r)); err != nil {
			s.refuse(w, r, AsError(err))
		}
	})
}

// permit returns the token that lets r do what needs any one of the scopes in need.
func (s *adminServer) permit(r *http.Request, need Scope) (*token, *Error) {
	return s.api.tokens.permit(r.Header.Get("Authorization"), len(r.Header["Authorization"]), need, nil)
}

// tokenOf is the context key of a request's token.
type tokenOf struct{}

// mark returns r with its token in the context; a nil token leaves r as it is.
func (t *token) mark(r *http.Request) *http.Request {
	if t == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), tokenOf{}, t))
}

// tokenIn returns r's token, nil for none.
func tokenIn(r *http.Request) *token {
	t, _ := r.Context().Value(tokenOf{}).(*token)
	return t
}

func (m methods) allow() string {
	var names []string
	for _, name := range [...]string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
		if _, ok := m[name]; ok {
			names = append(names, name)
		}
	}
	if _, ok := m[http.MethodGet]; ok {
		names = append(names, http.MethodHead)
	}
	return strings.Join(names, ", ")
}

// profiles are the pprof pages that are not in its profile index.
var profiles = map[string]http.HandlerFunc{"profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace}

// profile serves a pprof page, for as long as the caller asks, at most maxProfile.
func (s *adminServer) profile(w http.ResponseWriter, r *http.Request) error {
	if e := s.pages.refuseCostly(r); e != nil {
		return e
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxProfile)); err != nil {
		s.log.Debug("write deadline not set", "error", err)
	}
	page := profiles[strings.TrimPrefix(r.URL.Path, "/debug/pprof/")]
	if page == nil {
		page = pprof.Index
	}
	page(w, r)
	return nil
}

// refuse answers with an error.
func (s *adminServer) refuse(w http.ResponseWriter, r *http.Request, e *Error) {
	if e.Err != nil && (e.Code == Internal || e.Code == WriteFailed) {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", e.Err)
	}
	h := w.Header()
	h.Set("Content-Type", typeProblem)
	h.Set("Cache-Control", "no-store")
	if e.Code == Unauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="rlnode"`)
	}
	w.WriteHeader(e.Status())
	s.send(w, appendProblem(nil, e))
}

// reply answers with JSON.
func (s *adminServer) reply(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	s.sendJSON(w, body)
	return nil
}

func (s *adminServer) sendJSON(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", typeJSON)
	w.Header().Set("Cache-Control", "no-store")
	s.send(w, append(body, '\n'))
}

func (s *adminServer) send(w http.ResponseWriter, body []byte) {
	if _, err := w.Write(body); err != nil {
		s.log.Debug("answer not sent", "error", err)
	}
}
