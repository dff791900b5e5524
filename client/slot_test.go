package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

const held = `{"allowed":true,"rule":"r","limit":2,"used":1,"remaining":1,"unit":"requests","ttl_ms":3000,"reset_after_ms":3000,` +
	`"retry_after_ms":0,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":3,"slot":"abc","expires_ms":3000}`

const allHeld = `{"allowed":false,"rule":"r","limit":2,"used":2,"remaining":0,"unit":"requests","ttl_ms":3000,"reset_after_ms":3000,` +
	`"retry_after_ms":2000,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":3,"code":"rate-limited","detail":"All are held."}`

const slotOver = `{"status":404,"code":"unknown-slot","title":"Unknown slot","detail":"it is over"}`

const tryAgain = `{"status":503,"code":"try-again","title":"Try again","detail":"no node may decide"}`

// slots has f answer acquires with a text, renewals as renew says (nil: as they
// should be), and everything else with an empty object.
func (f *fake) slots(acquire string, renew func() (int, string)) {
	f.set(func() {
		f.answer = func(w http.ResponseWriter, r *http.Request) bool {
			status, text := 200, "{}"
			switch r.URL.Path {
			case "/v1/acquire", "/v1/reserve":
				text = acquire
				if acquire == allHeld {
					status = 429
				}
			case "/v1/renew":
				text = `{"expires_ms":3000}`
				if renew != nil {
					status, text = renew()
				}
			case "/v1/settle":
				text = `{"settled":true}`
			}
			w.WriteHeader(status)
			io.WriteString(w, text)
			return true
		}
	})
}

// paths returns what f was asked.
func (f *fake) paths() (all []string) {
	for _, r := range f.requests() {
		all = append(all, strings.TrimPrefix(r.path, "/v1/"))
	}
	return all
}

func (f *fake) wantPaths(t *testing.T, want ...string) {
	t.Helper()
	expect.EqualSlices(t, f.paths(), want, "got the calls")
}

// isOver reports whether a context has ended.
func isOver(ctx context.Context) bool { return ctx.Err() != nil }

func TestSlotRenewsItself(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.slots(held, nil)
		c := connectTo(Options{})
		ctx, hangUp := context.WithCancel(background)
		s, err := c.Acquire(ctx, Request{Rule: "r", Key: []string{"k"}, Slots: 2, Who: "me"}, 3*time.Second)
		expect.NoError(t, err)
		sent := f.requests()[0].checks[0]
		if id, ok := sent["request_id"].(string); !ok || id == "" {
			t.Errorf("it has no request_id, so that it can't be repeated: %v", sent)
		}
		delete(sent, "request_id")
		if want := map[string]any{"rule": "r", "key": "k", "n": 2.0, "who": "me",
			"ttl_ms": 3000.0}; !reflect.DeepEqual(sent, want) {
			t.Errorf("sent %v, want %v", sent, want)
		}
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		f.wantPaths(t, "acquire", "renew", "renew", "renew")

		hangUp()
		if !isOver(s.Context()) {
			t.Error("the slot's context goes on after the caller's")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		f.wantPaths(t, "acquire", "renew", "renew", "renew", "renew") // what it protects may go on
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		f.wantPaths(t, "acquire", "renew", "renew", "renew", "renew", "release")
	})
}

func TestSlotThatIsOver(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.slots(held, func() (int, string) { return 404, slotOver })
		s, err := connectTo(Options{}).Acquire(background, byIP("a"), 0)
		expect.NoError(t, err)
		began := time.Now()
		<-s.Context().Done()
		wantError(t, context.Cause(s.Context()), ErrSlotLost)
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("it was lost after %v, want a third of 3 s", took)
		}
		s.Close()
		f.wantPaths(t, "acquire", "renew") // there is nothing to release
	})
}

// TestSlotThatIsNotRenewedInTime: its context ends with it, by the holder's
// clock, whatever the nodes do.
func TestSlotThatIsNotRenewedInTime(t *testing.T) {
	for name, renew := range map[string]func() (int, string){
		"try again": func() (int, string) { return 503, tryAgain },
		"no answer": func() (int, string) { time.Sleep(time.Hour); return 200, "{}" },
		"rejected": func() (int, string) {
			return 401,
				`{"status":401,"code":"unauthorized","title":"x","detail":"x"}`
		},
		"no JSON":    func() (int, string) { return 200, "<html>" },
		"a past one": func() (int, string) { return 200, `{"expires_ms":0}` },
	} {
		onVirtualTime(t, name, func(t *testing.T, f *fake, connectTo func(Options) *Client) {
			f.slots(held, renew)
			began := time.Now()
			s, err := connectTo(Options{Timeout: time.Second}).Acquire(background, byIP("a"), 0)
			expect.NoError(t, err)
			<-s.Context().Done()
			wantError(t, context.Cause(s.Context()), ErrSlotLost)
			took := time.Since(began)
			if name != "a past one" && took != 3*time.Second || took > 3*time.Second {
				t.Errorf("it was lost after %v, want 3 s", took)
			}
			s.Close()
			if got := f.paths(); got[len(got)-1] != "release" || len(got) > 100 {
				t.Errorf("got %d calls, the last ones %q; want few, and a release", len(got), got[max(0, len(got)-3):])
			}
		})
	}
}

// TestSlotCountsFromWhenItWasSent: an answer that comes late does not make a slot last longer.
func TestSlotCountsFromWhenItWasSent(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.slots(held, func() (int, string) { return 503, tryAgain })
		f.set(func() {
			inner := f.answer
			f.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/v1/acquire" {
					time.Sleep(800 * time.Millisecond)
				}
				return inner(w, r)
			}
		})
		began := time.Now()
		s, err := connectTo(Options{Timeout: 2 * time.Second}).Acquire(background, byIP("a"), 0)
		expect.NoError(t, err)
		<-s.Context().Done()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it was lost after %v, want 3 s", took)
		}
		s.Close()
	})
}

// TestCallerWhoHasGone: what is granted to it later is given back.
func TestCallerWhoHasGone(t *testing.T) {
	acquire := func(ctx context.Context, c *Client) error {
		_, err := c.Acquire(ctx, byIP("a"), 0)
		return err
	}
	reserve := func(ctx context.Context, c *Client) error {
		_, err := c.Reserve(ctx, byIP("a"), 0)
		return err
	}
	for _, v := range []struct {
		name, answer string
		call         func(context.Context, *Client) error
		paths        []string
	}{
		{"slot", held, acquire, []string{"acquire", "release"}},
		{"reservation", `{"allowed":true,"reservation":"def"}`, reserve, []string{"reserve", "settle"}},
		{"both", `{"allowed":true,"reservation":"def","slot":"abc","expires_ms":3000}`, reserve, []string{"reserve", "settle"}},
	} {
		onVirtualTime(t, v.name, func(t *testing.T, f *fake, connectTo func(Options) *Client) {
			f.slots(v.answer, nil)
			f.set(func() {
				inner := f.answer
				f.answer = func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == "/v1/"+v.paths[0] {
						time.Sleep(300 * time.Millisecond)
					}
					return inner(w, r)
				}
			})
			c := connectTo(Options{OnError: Closed})
			ctx, hangUp := context.WithCancel(background)
			time.AfterFunc(100*time.Millisecond, hangUp)
			if err := v.call(ctx, c); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			time.Sleep(time.Second)
			f.wantPaths(t, v.paths...)
		})
	}
}

// slowKeeper renews after its slot is over.
type slowKeeper struct {
	slots    SlotSet
	released atomic.Bool
}

func (k *slowKeeper) RenewSlot(context.Context, string) (time.Time, error) {
	time.Sleep(10 * time.Second)
	return time.Now().Add(time.Hour), nil
}

func (k *slowKeeper) ReleaseSlot(context.Context, string) error {
	k.released.Store(true)
	return nil
}

func (k *slowKeeper) Go(f func()) bool {
	go f()
	return true
}

func (k *slowKeeper) Slots() *SlotSet { return &k.slots }

// TestSlotOfASlowKeeper: the slot's context ends with it, although the renewal
// goes on, and succeeds.
func TestSlotOfASlowKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &slowKeeper{}
		began := time.Now()
		s, err := NewSlot(background, k, Decision{Allowed: true}, "abc", began.Add(3*time.Second))
		expect.NoError(t, err)
		<-s.Context().Done()
		wantError(t, context.Cause(s.Context()), ErrSlotLost)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it was lost after %v, want 3 s", took)
		}
		time.Sleep(time.Minute)
		if err := s.Close(); err != nil || !k.released.Load() {
			t.Errorf("got %v, released: %t", err, k.released.Load())
		}
	})
}

func TestAcquireIsRefused(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.slots(allHeld, nil)
		c := connectTo(Options{})
		s, err := c.Acquire(background, byIP("a"), 0)
		refused, ok := errors.AsType[*Refused](err)
		if s != nil || !ok || refused.RetryAfter != 2*time.Second || refused.Unwrap() != nil ||
			refused.Reason != "All are held." {
			t.Fatalf("got %v, %v; want a refusal", s, err)
		}

		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		defer cancel()
		began := time.Now()
		s, err = c.Acquire(ctx, Request{Rule: "r", Key: []string{}, Wait: true}, 0)
		if took := time.Since(began); s != nil || !errors.Is(err, context.DeadlineExceeded) || took != 10*time.Second {
			t.Errorf("got %v, %v after %v; want to wait for 10 s", s, err, took)
		}
		if n := len(f.paths()); n < 10 || n > 30 {
			t.Errorf("it asked %d times in 10 s", n)
		}
		time.AfterFunc(5*time.Second, func() { f.slots(held, nil) })
		s, err = c.Acquire(background, Request{Rule: "r", Key: []string{}, Wait: true}, 0)
		expect.NoError(t, err)
		s.Close()
	})
}

func TestAcquireWithoutNode(t *testing.T) {
	for _, test := range []struct {
		options Options
		status  int
		answer  string
		allowed bool
		cause   error
	}{
		{Options{}, 503, tryAgain, true, &Error{}},
		{Options{OnError: Closed}, 503, tryAgain, false, &Error{}},
		{Options{}, 400, `{"status":400,"code":"bad-value","title":"x","detail":"x"}`, false, &Error{}},
		{Options{}, 401, `{"status":401,"code":"unauthorized","title":"x","detail":"x"}`, false, &Error{}},
		{Options{OnRejected: RejectedOpen}, 401,
			`{"status":401,"code":"unauthorized","title":"x","detail":"x"}`, true, &Error{}},
		{Options{}, 200, `{"allowed":true,"rule":"r","decided_by":"owner","slot":"abc"}`, true, ErrBadAnswer},
	} {
		onVirtualTime(t, fmt.Sprint(test.status, test.options),
			func(t *testing.T, f *fake, connectTo func(Options) *Client) {
				f.set(func() {
					f.answer = func(w http.ResponseWriter, _ *http.Request) bool {
						w.WriteHeader(test.status)
						io.WriteString(w, test.answer)
						return true
					}
				})
				s, err := connectTo(test.options).Acquire(background, byIP("a"), 0)
				if (s != nil) != test.allowed {
					t.Fatalf("got %v, %v; want allowed: %t", s, err, test.allowed)
				}
				if s != nil {
					err = s.Err
					if s.ID != "" || isOver(s.Context()) || s.Close() != nil || !isOver(s.Context()) {
						t.Errorf("got %+v, want one that holds nothing", s)
					}
				}
				if _, answered := errors.AsType[*Error](err); !answered && !errors.Is(err, test.cause) {
					t.Errorf("got the cause %v", err)
				}
			})
	}
}

// TestAcquireInOneProcess: which can't tell what others hold.
func TestAcquireInOneProcess(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.set(func() { f.decide = func(map[string]any) (int, string) { return 503, tryAgain } })
		c := connectTo(Options{OnError: Local, Local: perMinute(1)})
		q := Request{Key: []string{"k"}, Limits: []Limit{{Limit: 1, TTL: "1s", Algorithm: "concurrency"}}}
		s, err := c.Acquire(background, q, 0)
		if refused, ok := errors.AsType[*Refused](err); s != nil || !ok ||
			refused.DecidedBy != ByLocal || refused.RetryAfter != time.Second {
			t.Errorf("got %v, %v", s, err)
		}
	})
}

// TestAcquireIsRepeated: the second node gets the request's id, so that it is
// one slot, whichever answers.
func TestAcquireIsRepeated(t *testing.T) {
	first, second := newFake(t), newFake(t)
	first.set(func() {
		first.answer = func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(503)
			io.WriteString(w, tryAgain)
			return true
		}
	})
	second.slots(held, nil)
	s, err := connect(t, Options{Timeout: 5 * time.Second}, first, second).Acquire(background, byIP("a"), 0)
	expect.NoError(t, err)
	a, b := first.requests()[0].checks[0], second.requests()[0].checks[0]
	if !reflect.DeepEqual(a, b) {
		t.Errorf("sent %v, and then %v", a, b)
	}
	s.Close()
}

func TestCloseReleasesSlots(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.slots(held, nil)
		c := connectTo(Options{OnError: Closed})
		var slots []*Slot
		for range 3 {
			s, err := c.Acquire(background, byIP("a"), 0)
			expect.NoError(t, err)
			slots = append(slots, s)
		}
		slots[0].Close()
		c.Close()
		f.wantPaths(t, "acquire", "acquire", "acquire", "release", "release", "release")
		for _, s := range slots {
			if !isOver(s.Context()) || s.Close() != nil {
				t.Error("a slot outlives its client")
			}
		}
		if _, err := c.Acquire(background, byIP("a"), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

// TestReservedSlot: a reservation's slot is renewed until it is settled, which releases it.
func TestReservedSlot(t *testing.T) {
	onVirtualTime(t, "", func(t *testing.T, f *fake, connectTo func(Options) *Client) {
		f.slots("", nil)
		f.set(func() {
			inner := f.answer
			f.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/v1/reserve" {
					return inner(w, r)
				}
				io.WriteString(w, strings.TrimSuffix(held, "}")+`,"reservation":"def"}`)
				return true
			}
		})
		c := connectTo(Options{})
		r, err := c.Reserve(background, byIP("a"), 0)
		if err != nil || r.Slot == nil {
			t.Fatalf("got %+v, %v", r, err)
		}
		time.Sleep(1500 * time.Millisecond)
		if _, err := c.Settle(background, r.ID, nil); err != nil {
			t.Error(err)
		}
		if !isOver(r.Slot.Context()) {
			t.Error("the slot goes on")
		}
		time.Sleep(time.Minute)
		f.wantPaths(t, "reserve", "renew", "settle")
		synctest.Wait()
		if len(c.slots.held)+len(c.slots.reserved) > 0 {
			t.Error("the client remembers it")
		}
	})
}

// TestMiddlewareHoldsSlots: for the length of the response, over real connections.
func TestMiddlewareHoldsSlots(t *testing.T) {
	f := newFake(t)
	f.slots(held, nil)
	c := connect(t, Options{Timeout: 20 * time.Second}, f)
	began, goOn := make(chan struct{}, 10), make(chan struct{})
	ended := make(chan error, 10)
	handler := Middleware(c,
		MiddlewareOptions{Slots: true,
			SlotTTL: 3 * time.Second})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/waits":
			began <- struct{}{}
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
		case "/deaf": // to the end of its context
			began <- struct{}{}
			<-goOn
		case "/panics":
			panic(http.ErrAbortHandler)
		case "/fails":
			w.WriteHeader(500)
		default:
			io.WriteString(w, "well")
		}
	}))
	late := http.NewServeMux()
	late.Handle("/", handler)
	late.Handle("/late/", http.StripPrefix("/late", http.TimeoutHandler(handler, 50*time.Millisecond, "late")))
	server := httptest.NewServer(late)
	defer server.Close()
	defer close(goOn)

	get := func(path string) int {
		r, err := http.Get(server.URL + path)
		if err != nil {
			return 0
		}
		defer r.Body.Close()
		return r.StatusCode
	}
	cut := func(path string) {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		expect.NoError(t, err)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		<-began
		conn.Close()
	}
	releases := func() (n int) {
		for _, path := range f.paths() {
			if path == "release" {
				n++
			}
		}
		return n
	}
	for i, step := range []struct {
		name string
		do   func()
	}{
		{"success", func() {
			if got := get("/"); got != 200 {
				t.Errorf("got %d", got)
			}
		}},
		{"error", func() { get("/fails") }},
		{"panic", func() {
			if r, err := http.Post(server.URL+"/panics", "", strings.NewReader("no call is repeated")); err == nil {
				r.Body.Close()
			}
		}},
		{"disconnect", func() { cut("/waits") }},
		{"disconnect of a handler that goes on", func() { cut("/deaf") }},
		{"time-out", func() {
			if got := get("/late/waits"); got != 503 {
				t.Errorf("got %d", got)
			}
		}},
	} {
		step.do()
		process.Eventually(t, step.name+": the slot is released", func() bool { return releases() == i+1 })
	}
	c.Close()
	if len(c.slots.held) > 0 {
		t.Errorf("%d slots are left", len(c.slots.held))
	}
}

func TestMiddlewareRefusesWithoutSlot(t *testing.T) {
	f := newFake(t)
	f.slots(allHeld, nil)
	handler := Middleware(connect(t, Options{}, f),
		MiddlewareOptions{Slots: true})(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		t.Error("it ran")
	}))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 429 || w.Header().Get("Retry-After") != "2" || !strings.Contains(w.Body.String(), "All are held.") {
		t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	f.wantPaths(t, "acquire")
}

// TestMiddlewareLosesItsSlot: the handler's context ends, and says why.
func TestMiddlewareLosesItsSlot(t *testing.T) {
	f := newFake(t)
	f.slots(strings.Replace(held, `"expires_ms":3000`, `"expires_ms":300`, 1),
		func() (int, string) { return 404, slotOver })
	var cause error
	handler := Middleware(connect(t, Options{}, f),
		MiddlewareOptions{Slots: true})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		cause = context.Cause(r.Context())
	}))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	wantError(t, cause, ErrSlotLost)
}
