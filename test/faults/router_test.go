//go:build faults

package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	wanDevice = "rltun"
	wanTable  = "77" // routing table: sends packets from a region's bridge to the device
	// farDelay is the one-way time of a packet to another region, so that a round trip takes 80 ms.
	farDelay = 40 * time.Millisecond
	// onTheWay is how many packets a direction holds; more are dropped, as by any router.
	onTheWay = 16384
	packet   = 1500
)

// router joins regions. The kernel hands packets between regions to a TUN
// device; the router holds them for the time of the way, and returns them for
// delivery. In a cut direction it drops all packets, including those in
// transit, without notice to the sender.
type router struct {
	tun     *os.File
	ways    map[[2]int]*way // by region: from, to
	undo    [][]string      // removes the routes
	dropped atomic.Int64    // because a direction was full
	done    sync.WaitGroup
}

// way is one direction between two regions.
type way struct {
	from, to int
	cut      atomic.Bool
	delay    atomic.Int64 // ns
	jitter   atomic.Int64 // ns: up to this much longer, at random
	random   *rand.Rand   // used by the reader only
	last     time.Time    // used by the reader only: when the last packet is due. None overtakes another
	parcels  chan parcel
}

// parcel is a packet in transit.
type parcel struct {
	due   time.Time
	bytes []byte
}

// openRouter lets the regions reach each other. The regions' bridges must exist.
func openRouter(seed uint64, regions ...int) (*router, error) {
	r := &router{ways: map[[2]int]*way{}}
	for _, from := range regions {
		for _, to := range regions {
			if from != to {
				w := &way{from: from, to: to,
					random:  rand.New(rand.NewPCG(seed, uint64(from<<8|to))),
					parcels: make(chan parcel, onTheWay)}
				w.delay.Store(int64(farDelay))
				r.ways[[2]int{from, to}] = w
			}
		}
	}
	if err := r.open(regions); err != nil {
		return nil, errors.Join(err, r.close())
	}
	for _, w := range r.ways {
		r.done.Go(func() { r.deliver(w) })
	}
	r.done.Go(r.read)
	return r, nil
}

func (r *router) open(regions []int) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open the TUN device: %w", err)
	}
	request, err := unix.NewIfreq(wanDevice)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("make the TUN device: %w", err)
	}
	r.tun = os.NewFile(uintptr(fd), wanDevice)
	for _, path := range []string{"ip_forward=1", "conf/all/rp_filter=0",
		"conf/" + wanDevice + "/rp_filter=0", "conf/all/send_redirects=0"} {
		if err := sysctl(path); err != nil {
			return err
		}
	}
	if err := run("ip", "link", "set", wanDevice, "txqueuelen", "10000", "up"); err != nil {
		return err
	}
	// Packets from the router are delivered; all others from a region go to another region.
	if err := r.rule("100", wanDevice, "main"); err != nil {
		return err
	}
	if err := run("ip", "route", "add", "default", "dev", wanDevice, "table", wanTable); err != nil {
		return err
	}
	for _, region := range regions {
		if err := sysctl("conf/" + bridgeOf(region) + "/rp_filter=0"); err != nil {
			return err
		}
		if err := r.rule("200", bridgeOf(region), wanTable); err != nil {
			return err
		}
	}
	return nil
}

func (r *router) rule(priority, from, table string) error {
	list := []string{"priority", priority, "iif", from, "lookup", table}
	if err := run("ip", append([]string{"rule", "add"}, list...)...); err != nil {
		return err
	}
	r.undo = append(r.undo, append([]string{"rule", "del"}, list...))
	return nil
}

// sysctl sets an IPv4 setting in this namespace.
func sysctl(setting string) error {
	for i := range setting {
		if setting[i] == '=' {
			return os.WriteFile("/proc/sys/net/ipv4/"+setting[:i], []byte(setting[i+1:]), 0o644)
		}
	}
	return fmt.Errorf("%q sets nothing", setting)
}

// read reads packets that the kernel sends to the device, until it is closed.
func (r *router) read() {
	defer func() {
		for _, w := range r.ways {
			close(w.parcels)
		}
	}()
	for {
		b := make([]byte, packet)
		n, err := r.tun.Read(b)
		if err != nil {
			return
		}
		if w := r.wayOf(b[:n]); w != nil && !w.cut.Load() {
			w.send(r, b[:n])
		}
	}
}

// wayOf returns the way of a packet, by its addresses: 10.77.<region>.<node>.
func (r *router) wayOf(b []byte) *way {
	if len(b) < 20 || b[0]>>4 != 4 {
		return nil // IPv6 traffic of the kernel itself
	}
	return r.ways[[2]int{int(b[14]), int(b[18])}]
}

func (w *way) send(r *router, b []byte) {
	due := time.Now().Add(time.Duration(w.delay.Load()))
	if jitter := w.jitter.Load(); jitter > 0 {
		due = due.Add(time.Duration(w.random.Int64N(jitter)))
	}
	if due.Before(w.last) {
		due = w.last
	}
	w.last = due
	select {
	case w.parcels <- parcel{due, b}:
	default:
		r.dropped.Add(1)
	}
}

func (r *router) deliver(w *way) {
	for p := range w.parcels {
		time.Sleep(time.Until(p.due))
		if !w.cut.Load() {
			_, _ = r.tun.Write(p.bytes) // a packet without a receiver is lost, as usual
		}
	}
}

// close ends the router, and removes its device and routes.
func (r *router) close() error {
	var wrong []error
	if r.tun != nil {
		wrong = append(wrong, r.tun.Close()) // also removes the device and its route
	}
	r.done.Wait()
	for _, list := range r.undo {
		wrong = append(wrong, run("ip", list...))
	}
	r.undo, r.tun = nil, nil
	return errors.Join(wrong...)
}

// lag sets the one-way time of packets between regions: delay, and at random up to jitter more.
func (r *router) lag(delay, jitter time.Duration) {
	for _, w := range r.ways {
		w.delay.Store(int64(delay))
		w.jitter.Store(int64(jitter))
	}
}

// oneWay cuts the direction from one region to another.
func (r *router) oneWay(from, to int) { r.ways[[2]int{from, to}].cut.Store(true) }

// pair cuts two regions off from each other.
func (r *router) pair(a, b int) {
	r.oneWay(a, b)
	r.oneWay(b, a)
}

// off cuts a region off from all others.
func (r *router) off(region int) {
	for at, w := range r.ways {
		if at[0] == region || at[1] == region {
			w.cut.Store(true)
		}
	}
}

// apart cuts all regions off from each other.
func (r *router) apart() {
	for _, w := range r.ways {
		w.cut.Store(true)
	}
}

// mend undoes all cuts.
func (r *router) mend() {
	for _, w := range r.ways {
		w.cut.Store(false)
	}
}
