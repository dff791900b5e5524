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
	pages  *pages
	writes chan struct{} // holds a token for each write under way
	// exports holds a token for each export under way.
	exports chan struct{}
	done    chan error // from Serve
	conns   *connections
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

func noteConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, tracked(c))
}

// spared answers connections with spare places one probe.
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

// methods are what one address of the admin plane takes.
type methods map[string]func(http.ResponseWriter, *http.Request) error

// routes are all addresses of the admin plane but those of pprof, and / and /ui, which lead to /ui/.
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
		"/v1/try":                          {http.MethodPost: s.try},
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
	mux.Handle("GET /{$}", http.RedirectHandler("ui/", http.StatusTemporaryRedirect))
	mux.Handle("/ui", http.RedirectHandler("ui/", http.StatusTemporaryRedirect))
	mux.HandleFunc("/debug/pprof/", s.profile(pprof.Index))
	mux.HandleFunc("/debug/pprof/profile", s.profile(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", s.profile(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", s.profile(pprof.Trace))
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

// endpoint dispatches by method to who has a token for that.
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
		}
		who, e := s.permit(r, needOf(method, r.Pattern))
		if e != nil {
			s.refuse(w, r, e)
			return
		}
		if err := f(w, who.mark(r)); err != nil {
			s.refuse(w, r, AsError(err))
		}
	})
}

// permit says whose token lets r do what needs one of the scopes in need.
func (s *adminServer) permit(r *http.Request, need Scope) (*token, *Error) {
	return s.api.tokens.permit(r.Header.Get("Authorization"), len(r.Header["Authorization"]), need, nil)
}

// tokenOf is the key, in a request's context, of the token that the request came with.
type tokenOf struct{}

// mark returns r with the token that it came with, nil for none.
func (t *token) mark(r *http.Request) *http.Request {
	if t == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), tokenOf{}, t))
}

// tokenIn is the token that r came with, nil for none.
func tokenIn(r *http.Request) *token {
	t, _ := r.Context().Value(tokenOf{}).(*token)
	return t
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
		_, e := s.permit(r, needOf(http.MethodGet, "/debug/pprof/"))
		if e == nil {
			e = s.pages.refuseCostly(r)
		}
		if e != nil {
			s.refuse(w, r, e)
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
