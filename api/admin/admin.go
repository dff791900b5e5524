package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/api/framing"
	"github.com/rlnode/rlnode/api/ui"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of the admin plane's server.
const (
	headerTimeout  = 10 * time.Second
	readTimeout    = 60 * time.Second
	writeTimeout   = 60 * time.Second
	idleTimeout    = 3 * time.Minute
	maxHeaderBytes = 16 << 10
	maxConnections = 512 // connections served at once
	// A connection that waits takes seatMemory. All of them may take one part in
	// seatParts of the node's memory.
	seatMemory = 24 << 10
	seatParts  = 64
	// maxWrites bounds the writes in progress at once; more wait. Parsing a large
	// document takes many times its size.
	maxWrites = 1
	// maxProfile bounds how long a pprof profile may run.
	maxProfile = 5 * time.Minute
)

// Server serves the admin plane.
type Server struct {
	doors  *api.Doors
	config Config
	addr   net.Addr
	server *http.Server
	pages  *pageGuard
	writes chan struct{} // holds an element for each write in progress
	diffs  chan struct{} // holds an element for each comparison of documents in progress
	// exports holds an element for each export in progress.
	exports chan struct{}
	done    chan error // Serve's result
	conns   *api.Connections
}

// endpoint is the handler of a method and a path of the admin plane.
type endpoint struct {
	// route is the method and the path, and behind a question mark the query
	// parameters that the endpoint takes. A * stands for any: programs that probe,
	// scrape or load a file may add their own.
	route string
	// need lists the scopes of which a token must have at least one. With 0, only
	// the scope admin will do.
	need  api.Scope
	serve func(http.ResponseWriter, *http.Request) error
}

// endpoints lists all endpoints of the admin plane, except / and /ui, which redirect to /ui/.
func (s *Server) endpoints() []endpoint {
	put, get := s.withPiece(s.write), s.withPiece(s.getPiece)
	remove := withoutBody(s.withPiece(func(w http.ResponseWriter, r *http.Request, c document.Change) error {
		c.Delete = true
		return s.write(w, r, c)
	}))
	return []endpoint{
		// Probes, metrics for Prometheus, and the dashboard's files. The page asks the
		// user for a token.
		{"GET /healthz?*", api.Anyone, s.getHealth},
		{"GET /readyz?*", api.Anyone, s.getReady},
		{"GET /metrics?*", api.Anyone, s.metrics()},
		{"GET /ui/?*", api.Anyone, dashboard(ui.Open())},

		{"GET /v1/rules?version", api.ScopeRead, s.getRules},
		{"GET /v1/rules/versions", api.ScopeRead, s.getVersions},
		{"POST /v1/rules/diff?from&to&rule", api.ScopeRead, s.diffRules},
		{"GET /v1/rules/{name}", api.ScopeRead, get},
		{"GET /v1/tiers?n&after", api.ScopeRead, s.getTiers},
		{"GET /v1/tiers/{name}", api.ScopeRead, get},
		{"GET /v1/subjects/{attribute}?n&after", api.ScopeRead, s.getSubjects},
		{"GET /v1/subjects/{attribute}/{value}", api.ScopeRead, s.getSubject},
		{"GET /v1/lists/{list}", api.ScopeRead, get},
		{"GET /v1/blocks?n&after&asleep", api.ScopeRead, s.getBlocks},
		{"GET /v1/entries?kind&n&after&asleep", api.ScopeRead, s.getEntries},
		{"GET /v1/entries/log?n&before", api.ScopeRead, s.getEntryLog},
		{"GET /v1/cluster", api.ScopeRead, s.getCluster},
		{"GET /v1/owner?rule&key", api.ScopeRead, s.withSubject(s.getOwner)},
		{"GET /v1/usage?rule&key", api.ScopeRead, s.withSubject(s.getUsage)},
		{"GET /v1/usage/monthly?month&rule&format&scope&incomplete", api.ScopeRead, s.getMonthly},
		{"GET /v1/top?by&recent&rule&n", api.ScopeRead, s.getTop},
		{"GET /v1/load", api.ScopeRead, s.getLoad},
		{"GET /v1/activity", api.ScopeRead, s.getActivity},
		{"GET /v1/history?by&n&rule", api.ScopeRead, s.getHistory},
		{"GET /v1/events?n", api.ScopeRead, s.getEvents},
		{"GET /v1/level", api.ScopeRead, s.getLevel},
		{"GET /v1/whoami", anyScope, s.getCaller},
		{"GET /openapi.yaml?*", api.ScopeRead, getOpenAPI},
		{"GET /schema.json?*", api.Anyone, getSchema},

		// These are as on the data plane, so that an operator needs only this
		// address.
		{"POST /v1/check", api.ScopeCheck, s.answerCheck},
		{"POST /v1/usage", api.ScopeCheck, s.answerCheck},
		{"POST /v1/adjust", api.ScopeAdjust, s.answerCheck},
		{"POST /v1/reset", api.ScopeAdjust, s.answerCheck},

		// A try takes nothing. With "peek": false it is a check and needs the scope check.
		{"POST /v1/try", api.ScopeCheck | api.ScopeRead, s.try},

		// Reports from gateways and services. Like adjustments, they change what is
		// used or allowed.
		{"DELETE /v1/usage?rule&key&limit_name&slot&request_id", api.ScopeAdjust, withoutBody(s.withSubject(s.deleteUsage))},
		{"POST /v1/load", api.ScopeAdjust, s.postLoad},
		{"POST /v1/feedback", api.ScopeAdjust, s.feedback},

		// Changes to rules, members and regions.
		{"PUT /v1/rules?version&message&via", api.ScopeAdmin, s.putRules},
		{"PUT /v1/rules/{name}?message&via", api.ScopeAdmin, put},
		{"PUT /v1/tiers/{name}?message&via", api.ScopeAdmin, put},
		{"PUT /v1/subjects/{attribute}/{value}?dry_run", api.ScopeAdmin, s.changeSubject},
		{"PUT /v1/lists/{list}?message&via", api.ScopeAdmin, put},
		{"DELETE /v1/rules/{name}?message&via", api.ScopeAdmin, remove},
		{"DELETE /v1/tiers/{name}?message&via", api.ScopeAdmin, remove},
		{"DELETE /v1/subjects/{attribute}/{value}?dry_run", api.ScopeAdmin, withoutBody(s.changeSubject)},
		{"DELETE /v1/lists/{list}?message&via", api.ScopeAdmin, remove},

		// Entries beside the rules.
		{"POST /v1/lists/{list}/entries?dry_run", api.ScopeEntries, s.withPiece(s.changeListed)},
		{"DELETE /v1/lists/{list}/entries?dry_run", api.ScopeEntries, s.withPiece(s.changeListed)},
		{"POST /v1/blocks?dry_run", api.ScopeEntries, s.changeBlock},
		{"DELETE /v1/blocks?rule&key&dry_run", api.ScopeEntries, s.changeBlock},
		{"POST /v1/entries", api.ScopeAdmin, s.restoreEntries},

		{"POST /v1/leave?force", api.ScopeAdmin, withoutBody(s.leave)},
		{"POST /v1/level?to", api.ScopeAdmin, withoutBody(s.raiseLevel)},
		{"DELETE /v1/members/{name}?force", api.ScopeAdmin, withoutBody(s.removeMember)},
		{"DELETE /v1/regions/{name}", api.ScopeAdmin, withoutBody(s.removeRegion)},

		// Profiles expose memory and slow the node down.
		{"GET /debug/pprof/?*", api.ScopeAdmin, s.profile},
	}
}

// Open binds the admin plane's address and starts serving.
func Open(doors *api.Doors, config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("open admin plane: %w", err)
	}

	ln, err := api.Listen(config.Addr)
	if err != nil {
		return nil, fmt.Errorf("open admin plane: %w", err)
	}

	s := &Server{
		doors: doors, config: config, addr: ln.Addr(), done: make(chan error, 1),
		writes: make(chan struct{}, maxWrites), diffs: make(chan struct{}, maxWrites),
		exports: make(chan struct{}, maxExports),
		conns:   doors.NewConnections(doors.Seats(maxConnections, seatParts, seatMemory)),
		pages:   newPageGuard(ln.Addr(), config.Hosts),
	}

	s.server = &http.Server{
		Handler:           s.onConnection(s.handler()),
		ConnContext:       withConnection,
		ConnState:         followConnState,
		ReadHeaderTimeout: cmp.Or(doors.Timeout, headerTimeout),
		ReadTimeout:       cmp.Or(doors.Timeout, readTimeout),
		WriteTimeout:      cmp.Or(doors.Timeout, writeTimeout),
		IdleTimeout:       cmp.Or(doors.Timeout, idleTimeout),
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(doors.Logger.Handler(), slog.LevelDebug),
		// An empty map turns HTTP/2 off for TLS clients. The data plane does not speak it either.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}

	ln = s.conns.Listen(ln)
	if doors.TLS != nil {
		ln = tls.NewListener(ln, doors.TLS)
	}

	go func() { s.done <- s.server.Serve(checkedListener{ln}) }()
	return s, nil
}

// Addr returns the address on which the admin plane listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Close stops accepting connections, waits for the requests in progress until
// ctx ends, and closes what is left.
func (s *Server) Close(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("close admin plane: %w", err), s.server.Close())
	}

	served := <-s.done
	if !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	s.conns.CloseAll()
	s.conns.Wait()
	return err
}

func (s *Server) handler() http.Handler {
	routes := s.routes()
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// The route comes first, because the check of pages needs the pattern.
		handler := routes.find(r)

		if e := s.pages.check(r); e != nil {
			s.sendError(w, r, e)
			return
		}
		if handler == nil {
			s.notFound(w, r)
			return
		}

		handler.ServeHTTP(w, r)
	}))
}

func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	path, _ := framing.SplitTarget(r.RequestURI)
	// rlnode's commands give a hint if a detail begins with these words.
	s.sendError(w, r, api.Errorf(api.NotFound, "there is nothing at %s", api.Excerpt(strings.ToValidUTF8(path, "�"))))
}

// routes returns the handlers of all paths.
func (s *Server) routes() *router {
	routes := &router{}
	all := byPattern(s.endpoints())

	// Patterns with fewer wildcards go first.
	for _, pattern := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "{"), strings.Count(b, "{")), cmp.Compare(a, b))
	}) {
		routes.handle(pattern, s.dispatch(all[pattern]))
	}

	toDashboard := http.RedirectHandler("ui/", http.StatusTemporaryRedirect)
	routes.handle("/ui", toDashboard)
	routes.handle("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			toDashboard.ServeHTTP(w, r)
			return
		}
		s.notFound(w, r)
	}))
	return routes
}

// guard turns a panic into an internal error that reveals nothing about it.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}

			if v == http.ErrAbortHandler {
				panic(v) // a handler breaks off its answer this way; the server handles it
			}

			s.doors.Panics.Add(1)
			s.doors.Logger.Error("panic in a handler", "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			s.sendError(w, r, api.InternalError())
		}()

		next.ServeHTTP(w, r)
	})
}

// methods are the endpoints of one path, by method.
type methods map[string]endpoint

func byPattern(all []endpoint) map[string]methods {
	out := map[string]methods{}
	for _, e := range all {
		method, pattern, _ := strings.Cut(e.path(), " ")
		if out[pattern] == nil {
			out[pattern] = methods{}
		}
		out[pattern][method] = e
	}
	return out
}

// dispatch returns a handler that calls the endpoint of the request's method,
// if the caller's token permits it.
func (s *Server) dispatch(m methods) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet // net/http leaves the body out
		}

		target, ok := m[method]
		if !ok {
			w.Header().Set("Allow", m.allow())
			s.sendError(w, r, api.Errorf(api.MethodNotAllowed, "%s takes %s", r.Pattern, m.allow()))
			return
		}

		token, e := s.doors.Authorize(r.Header.Get("Authorization"), len(r.Header["Authorization"]), target.need, nil)
		if e == nil && target.need&api.ScopeCheck == 0 { // a try checks the namespaces itself
			e = token.NamespaceError(&limiter.Query{})
		}

		if e != nil {
			s.sendError(w, r, e)
			return
		}

		if token != nil {
			if c := connectionOf(r); c != nil {
				c.Trust()
			}
			r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, token))
		}

		e = target.checkQuery(r)
		if e == nil {
			e = checkConditions(r)
		}
		if e != nil {
			s.sendError(w, r, e)
			return
		}

		if err := target.serve(w, r); err != nil {
			s.sendError(w, r, s.withReason(asError(err)))
		}
	})
}

// tokenKey is the context key for the token of a request.
type tokenKey struct{}

// tokenFrom returns r's token, nil for none.
func tokenFrom(r *http.Request) *api.Token {
	t, _ := r.Context().Value(tokenKey{}).(*api.Token)
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

// answerCheck answers a call of the data plane.
func (s *Server) answerCheck(w http.ResponseWriter, r *http.Request) error {
	return s.config.Checks(w, r)
}

// profiles are the pprof pages that pprof.Index does not serve.
var profiles = map[string]http.HandlerFunc{"profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace}

// profile serves a pprof page. Profiling may take at most maxProfile.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) error {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxProfile)); err != nil {
		s.doors.Logger.Debug("write deadline not set", "error", err)
	}
	page := profiles[strings.TrimPrefix(r.URL.Path, "/debug/pprof/")]
	if page == nil {
		page = pprof.Index
	}
	page(w, r)
	return nil
}

// sendError answers with an error.
func (s *Server) sendError(w http.ResponseWriter, r *http.Request, e *api.Error) {
	if e.Err != nil && (e.Code == api.Internal || e.Code == api.WriteFailed) {
		s.doors.Logger.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", e.Err)
	}
	h := w.Header()
	h.Set("Content-Type", codec.TypeProblem)
	h.Set("Cache-Control", "no-store")
	if e.Code == api.Unauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="rlnode"`)
	}
	w.WriteHeader(e.Status())
	s.send(w, codec.AppendProblem(nil, e))
}

// withReason adds why this node is not ready to an error that says only that the
// nodes did not agree: the reason may be this node's own disk.
func (s *Server) withReason(e *api.Error) *api.Error {
	if e.Code != api.Timeout && e.Code != api.NoLeader {
		return e
	}
	why := s.doors.ProbeError()
	if why == nil {
		return e
	}
	more := *e
	more.Detail += "; this node: " + why.Detail
	return &more
}

// reply answers with JSON.
func (s *Server) reply(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	s.sendJSON(w, body)
	return nil
}

func (s *Server) sendJSON(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", codec.TypeJSON)
	w.Header().Set("Cache-Control", "no-store")
	s.send(w, append(slices.Clip(body), '\n')) // other callers may get the same body
}

func (s *Server) send(w http.ResponseWriter, body []byte) {
	if _, err := w.Write(body); err != nil {
		s.doors.Logger.Debug("answer not sent", "error", err)
	}
}
