package main

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestAddressLimit(t *testing.T) {
	l := newLimiter(tenMinutes, false)
	one, two := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for _, c := range []struct {
		policy string
		who    netip.Prefix
		when   string
		charge bool
		times  int
		want   string
	}{
		{"looking takes nothing", one, "0s", false, 5, "60 until 0s"},
		{"the first request begins a window of a minute", one, "1s", true, 1, "59 until 1m1s"},
		{"looking takes nothing from a running window", one, "2s", false, 5, "59 until 1m1s"},
		{"60 requests are admitted", one, "30s", true, 59, "0 until 1m1s"},
		{"more are refused, and never banned", one, "40s", true, 500, "0 until 1m1s, refused"},
		{"looking at an empty bucket is no refusal", one, "41s", false, 1, "0 until 1m1s"},
		{"another address has its own", two, "41s", true, 1, "59 until 1m41s"},
		{"refused until the end", one, "60.999s", true, 1, "0 until 1m1s, refused"},
		{"full at the end", one, "61s", true, 1, "59 until 2m1s"},
	} {
		var d decision
		for range c.times {
			d = l.address(c.who, clock(c.when).time(), c.charge)
		}
		got := levelText(d.level())
		if d.refusal == CodeRateLimited {
			got += ", refused"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.policy, got, c.want)
		}
	}
}

func TestHeadersOfAnAddress(t *testing.T) {
	l := newLimiter(tenMinutes, false)
	address := netip.MustParsePrefix("192.0.2.1/32")
	var d decision
	for range 61 {
		d = l.address(address, clock("0s").time(), true)
	}
	want := `RateLimit: "address";r=0;t=60
RateLimit-Policy: "address";q=60;w=60
Retry-After: 60
X-RateLimit-Limit: 60
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1800000060
`
	if got := headersOf(d); got != want {
		t.Errorf("the headers are\n%s, want\n%s", got, want)
	}
}

func TestTheNetworkOfAConnection(t *testing.T) {
	for _, c := range []struct{ policy, remote, want string }{
		{"an IPv4 address counts alone", "203.0.113.9:5000", "203.0.113.9/32"},
		{"its port does not matter", "203.0.113.9:5001", "203.0.113.9/32"},
		{"of an IPv6 address the /64 counts", "[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"},
		{"a neighbour is the same client", "[2001:db8:1:2:ffff::1]:5000", "2001:db8:1:2::/64"},
		{"an address outside the /64 is another", "[2001:db8:1:3::1]:5000", "2001:db8:1:3::/64"},
		{"a zone does not matter", "[fe80::1%eth0]:5000", "fe80::/64"},
		{"a mapped address is an IPv4 address", "[::ffff:203.0.113.9]:5000", "203.0.113.9/32"},
		{"callers that nothing tells apart share one bucket", "@", "invalid Prefix"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{}}
		r.Header.Set("X-Forwarded-For", "198.51.100.7") // not believed, because it is not named
		if got := clientNetwork(r, "").String(); got != c.want {
			t.Errorf("%s: charged to %s, want %s", c.policy, got, c.want)
		}
	}
}

func TestTheNetworkBehindAProxy(t *testing.T) {
	const proxy = "10.0.0.1/32"
	for _, c := range []struct {
		policy string
		lines  []string // of the header that is named
		want   string
	}{
		{"the header counts", []string{"198.51.100.7"}, "198.51.100.7/32"},
		{"its rightmost entry counts, the others are the client's word",
			[]string{"192.0.2.66, 192.0.2.67 , 198.51.100.7"}, "198.51.100.7/32"},
		{"spaces do not matter", []string{"192.0.2.66,198.51.100.7"}, "198.51.100.7/32"},
		{"of several lines the last counts",
			[]string{"192.0.2.66", "192.0.2.68, 198.51.100.7"}, "198.51.100.7/32"},
		{"an entry may have a port", []string{"198.51.100.7:8080"}, "198.51.100.7/32"},
		{"of IPv6 the /64 counts", []string{"2001:db8:1:2::9"}, "2001:db8:1:2::/64"},
		{"IPv6 may have a port", []string{"[2001:db8:1:2::9]:8080"}, "2001:db8:1:2::/64"},
		{"brackets need no port", []string{"[2001:db8:1:2::9]"}, "2001:db8:1:2::/64"},
		{"a mapped entry is IPv4", []string{"::ffff:198.51.100.7"}, "198.51.100.7/32"},
		{"garbage falls back to the proxy", []string{"192.0.2.66, unknown"}, proxy},
		{"so does the syntax of Forwarded", []string{"for=198.51.100.7"}, proxy},
		{"so does a name", []string{"localhost:80"}, proxy},
		{"so does an empty entry", []string{"192.0.2.66, "}, proxy},
		{"so does an empty last line", []string{"192.0.2.66", ""}, proxy},
		{"so does a header that is missing", nil, proxy},
	} {
		r := &http.Request{RemoteAddr: "10.0.0.1:443", Header: http.Header{
			"X-Real-Ip":       c.lines,
			"X-Forwarded-For": {"203.0.113.9"}, // not named
		}}
		if got := clientNetwork(r, "x-real-ip").String(); got != c.want {
			t.Errorf("%s: charged to %s, want %s", c.policy, got, c.want)
		}
	}
}

// TestAddressesRememberedAreBounded, and who goes round with more addresses than that does not
// escape.
func TestAddressesRememberedAreBounded(t *testing.T) {
	l := newLimiter(tenMinutes, false)
	const addresses = maxAddresses * 9 / 8
	ask := func(i int) decision {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return l.address(netip.PrefixFrom(ip, 32), testStart.time(), true)
	}
	most := 0
	for i := range addresses {
		for range addressQuota {
			ask(i)
		}
		most = max(most, len(l.addresses))
	}
	refused := 0
	for i := range addresses {
		if ask(i).refusal != "" {
			refused++
		}
	}
	if most != 65_536 { // the README's number
		t.Errorf("up to %d addresses were remembered, want 65536", most)
	}
	if refused < addresses/2 {
		t.Errorf("of %d addresses that were spent %d are refused", addresses, refused)
	}
}
