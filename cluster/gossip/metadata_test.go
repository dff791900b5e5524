package gossip

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestMetadata(t *testing.T) {
	long := Member{Boot: 1<<64 - 1, Name: strings.Repeat("n", maxName), Region: strings.Repeat("r", maxRegion),
		Zone: strings.Repeat("z",
			maxZone), PeerPort: 65535, Cluster: [16]byte{15: 1}, BootstrapExpect: 65535, RaftEmpty: true, SettingsVersion: 255}
	for _, test := range []struct {
		have Member
		want error
	}{
		{have: Member{Name: "n1"}},
		{have: Member{Name: "größe 1", Region: "eu", Zone: "a", Boot: 7, PeerPort: 7947,
			BootstrapExpect: 3, SettingsVersion: 2}},
		{have: long},
		{have: Member{Name: "n1", Region: "eu", RegionSize: 65535, Primary: strings.Repeat("p", maxRegion)}},
		{have: Member{Name: long.Name, Region: long.Region, RegionSize: 1, Primary: long.Region}},
		{have: Member{Name: long.Name, Region: long.Region, Zone: long.Zone, Primary: long.Region}, want: ErrMetadata},
		{have: Member{Name: "n", RegionSize: 65536}, want: ErrMetadata},
		{have: Member{Name: "n", RegionSize: -1}, want: ErrMetadata},
		{have: Member{Name: "n", Primary: long.Region + "r"}, want: ErrMetadata},
		{have: Member{Name: "n", Primary: "a\nb"}, want: ErrMetadata},
		{have: Member{}, want: ErrMetadata},
		{have: Member{Name: long.Name + "n"}, want: ErrMetadata},
		{have: Member{Name: "n", Region: long.Region + "r"}, want: ErrMetadata},
		{have: Member{Name: "n", Zone: long.Zone + "z"}, want: ErrMetadata},
		{have: Member{Name: "a\nb"}, want: ErrMetadata},
		{have: Member{Name: "a\x1b[2J"}, want: ErrMetadata},
		{have: Member{Name: "a\xff"}, want: ErrMetadata},
		{have: Member{Name: "n", PeerPort: 65536}, want: ErrMetadata},
		{have: Member{Name: "n", PeerPort: -1}, want: ErrMetadata},
		{have: Member{Name: "n", BootstrapExpect: 65536}, want: ErrMetadata},
		{have: Member{Name: "n", BootstrapExpect: -1}, want: ErrMetadata},
	} {
		for _, p := range []State{Alive, Left} {
			test.have.State = p
			b, err := appendMetadata(nil, test.have)
			if !errors.Is(err, test.want) {
				t.Fatalf("%+v: have error %v, want %v", test.have, err, test.want)
			}
			if err != nil {
				continue
			}
			if len(b) > maxMetadata {
				t.Errorf("%+v: %d bytes", test.have, len(b))
			}
			m, err := parseMetadata(b)
			if err != nil || m != test.have {
				t.Errorf("have %+v, %v\nwant %+v", m, err, test.have)
			}
			// A later version may append more.
			more := append(b, 200, 2, 'x', 'y', 201, 0)
			if m, err := parseMetadata(more); len(more) <= maxMetadata && (err != nil || m != test.have) {
				t.Errorf("with extensions: have %+v, %v", m, err)
			}
			for n := range len(b) {
				if m, err := parseMetadata(b[:n]); !errors.Is(err, ErrMetadata) &&
					(m.RegionSize == test.have.RegionSize && m.Primary == test.have.Primary) {
					t.Errorf("the first %d bytes: have error %v", n, err)
				}
			}
		}
	}
	if _, err := parseMetadata(append(plain(t), extensionMembers, 1, 7)); !errors.Is(err, ErrMetadata) {
		t.Errorf("members in one byte: have error %v", err)
	}
}

func plain(t *testing.T) []byte {
	b, err := appendMetadata(nil, Member{Name: "n1"})
	expect.NoError(t, err)
	return b
}

func FuzzMetadata(f *testing.F) {
	b, err := appendMetadata(nil, Member{Name: "n1", Region: "eu", Zone: "a", Boot: 7, RaftEmpty: true, State: Left})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(append(b, 9, 1, 0))
	f.Add(append(b, extensionMembers, 2, 0, 5, extensionPrimary, 2, 'e', 'u'))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, have []byte) {
		m, err := parseMetadata(have)
		if err != nil {
			if !errors.Is(err, ErrMetadata) {
				t.Fatal(err)
			}
			return
		}
		again, err := appendMetadata(nil, m)
		expect.NoError(t, err)
		if n, err := parseMetadata(again); err != nil || n != m {
			t.Fatalf("have %+v, %v, want %+v", n, err, m)
		}
		m.RegionSize, m.Primary = 0, "" // unknown extensions may come between these
		again, err = appendMetadata(nil, m)
		if err != nil || !bytes.HasPrefix(have, again) {
			t.Fatalf("have %x, %v, want the beginning of %x", again, err, have)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add(appendState([]departure{{id: id(1), boot: 2}, {id: id(3), boot: 4}}, []byte("news")))
	f.Add([]byte{3})
	f.Fuzz(func(t *testing.T, have []byte) {
		all, news, err := parseState(have)
		if err != nil {
			if !errors.Is(err, ErrMetadata) {
				t.Fatal(err)
			}
			return
		}
		if again := appendState(all, news); !bytes.Equal(again, have) {
			t.Fatalf("have %x, want %x", again, have)
		}
	})
}
