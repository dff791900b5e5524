//go:build browser

package e2e

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// TestMain lets all stories go on at once: most of the time they wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "3")
	code := m.Run()
	if err := chromium.close(); err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds one action of the browser, and the wait for nodes and page to
// reach a state, even on a busy machine.
const patience = time.Minute

// chromium is shared by all stories, because it takes seconds of processor time
// to start. Each has a context of its own, with its own windows, storage and
// cache.
var chromium chromiumProcess

// chromiumProcess is a Chromium that is controlled over a pipe: JSON messages,
// each ended by a zero byte.
type chromiumProcess struct {
	once sync.Once
	dir  string
	cmd  *exec.Cmd
	in   *os.File
	read chan struct{}
	err  error // why it did not start

	mu      sync.Mutex // guards the rest, and writes to in
	next    int
	waiting map[int]chan reply
	pages   map[string]*browser // by session
}

type reply struct {
	ID        int             `json:"id"`
	Result    json.RawMessage `json:"result"`
	Error     *struct{ Message string }
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	SessionID string          `json:"sessionId"`
}

// start starts Chromium, once.
func (p *chromiumProcess) start() error {
	p.once.Do(func() { p.err = p.launch() })
	return p.err
}

func (p *chromiumProcess) launch() (err error) {
	if p.dir, err = os.MkdirTemp("", "rlnode-chromium-"); err != nil {
		return err
	}
	toBrowser, in, err1 := os.Pipe()
	out, fromBrowser, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	p.in, p.waiting, p.pages, p.read = in, map[int]chan reply{}, map[string]*browser{}, make(chan struct{})
	p.cmd = exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows",
		"--disable-background-timer-throttling",
		"--hide-scrollbars", "--user-data-dir="+p.dir, "--remote-debugging-pipe", "about:blank")
	p.cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // its descriptors 3 and 4
	err = p.cmd.Start()
	toBrowser.Close()
	fromBrowser.Close()
	if err != nil {
		in.Close()
		out.Close()
		return err
	}
	go p.follow(out)
	return nil
}

// close ends Chromium, if it was started, and removes its files.
func (p *chromiumProcess) close() error {
	if p.cmd == nil || p.cmd.Process == nil {
		return os.RemoveAll(p.dir)
	}
	_, _ = p.command("", "Browser.close", nil)
	p.in.Close()
	killer := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait()
	killer.Stop()
	<-p.read
	err := os.RemoveAll(p.dir)
	for began := time.Now(); err != nil && time.Since(began) < patience; err = os.RemoveAll(p.dir) {
		<-time.After(20 * time.Millisecond) // its other processes end a little later
	}
	return err
}

// follow reads the browser's messages until the end.
func (p *chromiumProcess) follow(out *os.File) {
	defer close(p.read)
	defer out.Close()
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			p.mu.Lock()
			for _, ch := range p.waiting {
				close(ch)
			}
			p.waiting = nil
			p.mu.Unlock()
			_, _ = io.Copy(io.Discard, out)
			return
		}
		var m reply
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		p.mu.Lock()
		ch, page := p.waiting[m.ID], p.pages[m.SessionID]
		if m.Method == "" {
			delete(p.waiting, m.ID)
		}
		p.mu.Unlock()
		switch {
		case m.Method == "" && ch != nil:
			ch <- m
		case m.Method != "" && page != nil:
			page.hear(m)
		}
	}
}

func (p *chromiumProcess) command(session, method string, params any) (json.RawMessage, error) {
	ch := make(chan reply, 1)
	p.mu.Lock()
	if p.waiting == nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("%s: the browser has ended", method)
	}
	p.next++
	m := map[string]any{"id": p.next, "method": method}
	if params != nil {
		m["params"] = params
	}
	if session != "" {
		m["sessionId"] = session
	}
	text, err := json.Marshal(m)
	if err == nil {
		p.waiting[p.next] = ch
		_, err = p.in.Write(append(text, 0))
	}
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case m, ok := <-ch:
		switch {
		case !ok:
			return nil, fmt.Errorf("%s: the browser has ended", method)
		case m.Error != nil:
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m.Result, nil
	case <-timeout.C:
		return nil, fmt.Errorf("%s: the browser does not answer", method)
	}
}

// browser is one page of Chromium.
type browser struct {
	t       *testing.T
	session string // of the page

	inspected int // how many states

	mu       sync.Mutex // guards the rest
	troubles []string   // errors that the page logged
	asked    []string   // its requests: the complete messages about them, without headers
}

// openBrowser opens an empty page in a context of its own.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	expect.NoError(t, chromium.start())
	b := &browser{t: t}
	var context struct{ BrowserContextID string }
	b.must("", "Target.createBrowserContext", nil, &context)
	t.Cleanup(func() {
		_, _ = chromium.command("", "Target.disposeBrowserContext",
			map[string]any{"browserContextId": context.BrowserContextID})
	})
	var target struct{ TargetID string }
	b.must("", "Target.createTarget",
		map[string]any{"url": "about:blank", "browserContextId": context.BrowserContextID, "newWindow": true},
		&target)
	var session struct{ SessionID string }
	b.must("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	chromium.mu.Lock()
	chromium.pages[b.session] = b
	chromium.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.page(domain+".enable", nil, nil)
	}
	return b
}

func (b *browser) hear(m reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch m.Method {
	case "Network.requestWillBeSent":
		var p struct {
			DocumentURL string
			Request     struct{ URL, URLFragment, PostData string }
		}
		_ = json.Unmarshal(m.Params, &p)
		b.asked = append(b.asked, p.DocumentURL+" "+p.Request.URL+p.Request.URLFragment+" "+p.Request.PostData)
	case "Runtime.exceptionThrown", "Page.javascriptDialogOpening":
		b.troubles = append(b.troubles, m.Method+" "+string(m.Params))
	case "Runtime.consoleAPICalled":
		if strings.Contains(string(m.Params), `"type":"error"`) {
			b.troubles = append(b.troubles, string(m.Params))
		}
	case "Log.entryAdded":
		var p struct {
			Entry struct{ Level, Text, URL string }
		}
		if json.Unmarshal(m.Params, &p) == nil && p.Entry.Level == "error" {
			b.troubles = append(b.troubles, p.Entry.Text+" "+p.Entry.URL)
		}
	}
}

func (b *browser) must(session, method string, params, result any) {
	b.t.Helper()
	text, err := chromium.command(session, method, params)
	if err == nil && result != nil {
		err = json.Unmarshal(text, result)
	}
	expect.NoError(b.t, err)
}

// page sends a command to the page.
func (b *browser) page(method string, params, result any) {
	b.t.Helper()
	b.must(b.session, method, params, result)
}

// open loads an address.
func (b *browser) open(url string) {
	b.t.Helper()
	b.load(func() { b.page("Page.navigate", map[string]any{"url": url}, nil) })
}

// reload loads the page anew.
func (b *browser) reload() {
	b.t.Helper()
	b.load(func() { b.page("Page.reload", nil, nil) })
}

// load does what replaces the page, and waits until that page is gone and the
// next one is there. An expression that is evaluated when the page goes fails.
func (b *browser) load(replace func()) {
	b.t.Helper()
	b.eval(`window.before = true`)
	replace()
	eventually(b.t, "the page is loaded", func() bool {
		var r struct{ Result struct{ Value any } }
		text, err := chromium.command(b.session, "Runtime.evaluate", map[string]any{
			"expression": `!window.before && document.readyState === 'complete' && location.href !== 'about:blank'`, "returnByValue": true,
		})
		return err == nil && json.Unmarshal(text, &r) == nil && r.Result.Value == true
	})
}

// eval returns the value of a JavaScript expression, which may be a promise.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.page("Runtime.evaluate",
		map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return r.Result.Value
}

// text returns an element's text.
func (b *browser) text(selector string) string {
	b.t.Helper()
	s, _ := b.eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ''`, selector)).(string)
	return s
}

// until waits until an expression is true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	eventually(b.t, what, func() bool { return b.eval(expression) == true })
}

// click presses the mouse on the middle of an element, which must not be covered.
func (b *browser) click(selector string) {
	b.t.Helper()
	// A notice that comes in above moves the page, and the click would hit what
	// is there then.
	for range 5 {
		if b.tryClick(selector) {
			return
		}
	}
	b.t.Fatalf("%s moves away from each click", selector)
}

// tryClick clicks where an element is. It reports false if the element was not there any more.
func (b *browser) tryClick(selector string) bool {
	b.t.Helper()
	place, ok := b.eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: 'center', behavior: 'instant'});
		const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
		const hit = document.elementFromPoint(x, y);
		window.missed = true;
		document.addEventListener('click', (event) => { window.missed = event.target !== hit && !e.contains(event.target); },
			{capture: true, once: true});
		return hit && (e.contains(hit) || hit.contains(e)) ? [x, y] : null;
	})()`, selector)).([]any)
	if !ok {
		b.t.Fatalf("%s is covered", selector)
	}
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.page("Input.dispatchMouseEvent",
			map[string]any{"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1},
			nil)
	}
	missed, _ := b.eval("window.missed === true").(bool)
	return !missed
}

// fill replaces a field's content with text.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.click(selector)
	b.eval(fmt.Sprintf(`document.querySelector(%q).select()`, selector))
	b.page("Input.insertText", map[string]any{"text": text}, nil)
	if text == "" {
		b.eval(fmt.Sprintf(`(e => { e.value = ''; e.dispatchEvent(new Event('input', {bubbles: true})); })(document.querySelector(%q))`, selector))
	}
}

// keyCodes are the numbers that Windows gave to keys.
var keyCodes = map[string]int{"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, " ": 32}

// press presses a key.
func (b *browser) press(key string) {
	b.t.Helper()
	text := map[string]string{"Enter": "\r", " ": " "}[key]
	b.page("Input.dispatchKeyEvent",
		map[string]any{"type": "keyDown", "key": key, "code": key,
			"windowsVirtualKeyCode": keyCodes[key], "text": text},
		nil)
	b.page("Input.dispatchKeyEvent",
		map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": keyCodes[key]},
		nil)
}

// choose selects an option of a select element.
func (b *browser) choose(selector, value string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`(e => { e.value = %q; e.dispatchEvent(new Event('change', {bubbles: true})); })(document.querySelector(%q))`, value, selector))
}

// look sets the viewport and the colour scheme. Nothing moves, because to draw
// bars that grow takes more processor time than all else that the page does.
func (b *browser) look(width, height int, scheme string) {
	b.t.Helper()
	b.page("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
		nil)
	b.page("Emulation.setEmulatedMedia", map[string]any{"features": []any{
		map[string]any{"name": "prefers-color-scheme", "value": scheme},
		map[string]any{"name": "prefers-reduced-motion", "value": "reduce"},
	}}, nil)
}

// shot saves a picture of the whole page in the folder SHOTS, if it is set.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("SHOTS")
	if dir == "" {
		return
	}
	b.save(filepath.Join(dir, name+".png"), map[string]any{})
}

// save writes a picture of the whole page.
func (b *browser) save(path string, options map[string]any) {
	b.t.Helper()
	b.eval(`scrollTo(0, 0)`)
	options["captureBeyondViewport"] = true
	var r struct{ Data string }
	b.page("Page.captureScreenshot", options, &r)
	picture, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(path, picture, 0o644)
	}
	expect.NoError(b.t, err)
}

// trouble returns the errors that the page logged since the last call, except
// lines that contain an expected text.
func (b *browser) trouble(expected ...string) (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
next:
	for _, line := range b.troubles {
		for _, e := range expected {
			if strings.Contains(line, e) {
				continue next
			}
		}
		list = append(list, line)
	}
	b.troubles = nil
	return list
}

// sent returns what the page has asked the node so far. The browser asks for
// the page's icon when it likes.
func (b *browser) sent() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.asked), func(asked string) bool { return !strings.Contains(asked, "/v1/") })
}

// eventually polls a condition that must become true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	process.Within(t, patience, what, ok)
}
