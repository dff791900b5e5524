package api

import (
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

	"github.com/rlnode/rlnode/ui"
)

// Bounds of the admin plane's server.
const (
	adminHeaderTimeout = 10 * time.Second
	adminReadTimeout   = 60 * time.Second
	adminWriteTimeout  = 60 * time.Second
	adminIdleTimeout   = 3 * time.Minute
	adminHeaderBytes   = 16 << 10
	// adminWrites bounds the writes under way at once; more wait.
	adminWrites = 4
	// maxProfile bounds how long a profile may be taken.
	maxProfile = 5 * time.Minute
)

// adminServer serves the admin plane.
type adminServer struct {
	api    *API
	log    *slog.Logger
	addr   net.Addr
	server *http.Server
	writes chan struct{} // holds a token for each write under way
	// exports holds a token for each export under way.
	exports chan struct{}
	done    chan error // from Serve
	conns   *connections
}

// methods are what one address of the admin plane takes.
type methods map[string]func(http.ResponseWriter, *http.Request) error

// routes are all addresses of the admin plane but those of pprof, and /ui, which leads to /ui/.
func (s *adminServer) routes() map[string]methods {
	get := func(f func(http.ResponseWriter, *http.Request) error) methods { return methods{http.MethodGet: f} }
	piece := methods{http.MethodGet: s.getPiece, http.MethodPut: s.putPiece, http.MethodDelete: s.deletePiece}
	return map[string]methods{
		"/v1/rules":                        {http.MethodGet: s.getRules, http.MethodPut: s.putRules},
		"/v1/rules/versions":               get(s.getVersions),
		"/v1/rules/{name}":                 piece,
		"/v1/tiers/{name}":                 piece,
		"/v1/subjects/{attribute}/{value}": piece,
		"/v1/lists/{list}":                 piece,
		"/v1/cluster":                      get(s.getCluster),
		"/v1/owner":                        get(s.getOwner),
		"/v1/usage":                        {http.MethodGet: s.getUsage, http.MethodDelete: s.deleteUsage},
		"/v1/usage/monthly":                get(s.getMonthly),
		"/v1/top":                          get(s.getTop),
		"/v1/load":                         {http.MethodGet: s.getLoad, http.MethodPost: s.postLoad},
		"/v1/activity":                     get(s.getActivity),
		tryPath:                            {http.MethodPost: s.try},
		"/v1/feedback":                     {http.MethodPost: s.feedback},
		"/v1/leave":                        {http.MethodPost: s.leave},
		"/v1/members/{name}":               {http.MethodDelete: s.removeMember},
		"/v1/level":                        {http.MethodGet: s.getLevel, http.MethodPost: s.raiseLevel},
		"/v1/regions/{name}":               {http.MethodDelete: s.removeRegion},
		"/metrics":                         get(s.metrics()),
		"/healthz":                         get(s.getHealth),
		"/readyz":                          get(s.getReady),
		"/openapi.yaml":                    get(getOpenAPI),
		"/ui/":                             get(dashboard(ui.Open())),
	}
}

// serveAdmin begins to serve the admin plane on ln, with TLS if config is not nil.
func serveAdmin(a *API, ln net.Listener, config *tls.Config) *adminServer {
	s := &adminServer{
		api: a, log: a.log, addr: ln.Addr(), writes: make(chan struct{}, adminWrites), exports: make(chan struct{}, maxExports), done: make(chan error, 1),
		conns: newConnections(0),
	}
	s.server = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: adminHeaderTimeout,
		ReadTimeout:       adminReadTimeout,
		WriteTimeout:      adminWriteTimeout,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    adminHeaderBytes,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		// Without this a TLS client would be offered HTTP/2, which the data plane does not speak either.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	ln = s.conns.listen(ln)
	if config != nil {
		ln = tls.NewListener(ln, config)
	}
	go func() { s.done <- s.server.Serve(ln) }()
	return s
}

// close stops taking connections, waits for the requests under way until ctx ends, and closes what is left.
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
	for pattern, m := range s.routes() {
		mux.Handle(pattern, s.endpoint(m))
	}
	mux.Handle("/ui", http.RedirectHandler("ui/", http.StatusTemporaryRedirect))
	mux.HandleFunc("/debug/pprof/", s.profile(pprof.Index))
	mux.HandleFunc("/debug/pprof/profile", s.profile(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", s.profile(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", s.profile(pprof.Trace))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, errorf(NotFound, "there is nothing at %s", excerpt(strings.ToValidUTF8(r.URL.Path, "�"))))
	})
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, errorf(Forbidden, "a write from a page of another origin is refused"))
	}))
	return s.guard(origin.Handler(mux))
}

// guard turns a panic into an answer that tells nothing about it.
func (s *adminServer) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v) // how a handler ends a connection; the server takes it from here
			}
			s.api.plane.panics.Add(1)
			s.log.Error("panic in a handler", "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			s.refuse(w, r, errInternal())
		}()
		next.ServeHTTP(w, r)
	})
}

// endpoint dispatches by method; what changes something needs the token.
func (s *adminServer) endpoint(m methods) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet // net/http leaves the body out
		}
		f := m[method]
		switch {
		case f == nil:
			w.Header().Set("Allow", m.allow())
			s.refuse(w, r, errorf(MethodNotAllowed, "%s takes %s", r.Pattern, m.allow()))
			return
		case method != http.MethodGet && r.Pattern != tryPath && !s.mayWrite(r):
			s.refuse(w, r, errNoToken())
			return
		}
		if err := f(w, r); err != nil {
			s.refuse(w, r, asError(err))
		}
	})
}

// mayWrite reports whether r carries the admin token, if one is needed.
func (s *adminServer) mayWrite(r *http.Request) bool {
	token := s.api.config.AdminToken
	return token == "" || authorized(r.Header.Get("Authorization"), token)
}

func errNoToken() *Error {
	return errorf(Unauthorized, "send the admin token as Authorization: Bearer")
}

func (m methods) allow() string {
	var names []string
	for _, name := range [...]string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
		if m[name] != nil {
			names = append(names, name)
		}
	}
	if m[http.MethodGet] != nil {
		names = append(names, http.MethodHead)
	}
	return strings.Join(names, ", ")
}

// profile serves a page of pprof, which takes as long as it is asked to.
func (s *adminServer) profile(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			s.refuse(w, r, errorf(MethodNotAllowed, "%s takes GET, HEAD", r.Pattern))
			return
		}
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxProfile)); err != nil {
			s.log.Debug("write deadline not set", "error", err)
		}
		page(w, r)
	}
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
