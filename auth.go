package main

// Who asks: the form of a key, and how a request is matched with one. What is stored of keys is in
// keys.go, which never sees their text.
//
// A key reads pet_live_ or pet_test_, then 32 random base-62 characters (190 bits from the
// operating system), then a checksum: the CRC-32 (IEEE) of all that stands before it, as 6 base-62
// digits. The prefix lets secret scanners find a leaked key; the checksum lets the service refuse a
// mistyped one without asking the database.
//
// The database holds only the SHA-256 of a key. A slow password hash would add nothing, since 190
// random bits cannot be guessed, and a lookup by digest takes the same time whatever prefix of a
// real key was guessed right.

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
	"math/big"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
)

const (
	randomLen, checksumLen = 32, 6

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// keyPrefix is that of the keys for staging (pet_test_), or else for production (pet_live_).
func keyPrefix(staging bool) string {
	if staging {
		return "pet_test_"
	}
	return "pet_live_"
}

// secret is a whole key. It shows only its end when it is logged or printed; string(s) is the
// whole.
type secret string

func (s secret) String() string   { return "pet_…" + s.lastFour() }
func (s secret) GoString() string { return s.String() }

// MarshalText implements encoding.TextMarshaler, for JSON and for logs.
func (s secret) MarshalText() ([]byte, error) { //nolint:unparam // the interface
	return []byte(s.String()), nil
}

// lastFour are the characters people tell keys apart by.
func (s secret) lastFour() string { return string(s[max(0, len(s)-4):]) }

func (s secret) digest() digest { return sha256.Sum256([]byte(s)) }

// newSecret makes a key for staging, or else for production.
func newSecret(staging bool) secret {
	key := []byte(keyPrefix(staging))
	for range randomLen {
		n, _ := rand.Int(rand.Reader, big.NewInt(62)) // rand.Reader never returns an error
		key = append(key, base62[n.Int64()])
	}
	return secret(append(key, checksum(string(key))...))
}

// checksum is the CRC-32 of text as base-62 digits, most significant first.
func checksum(text string) string {
	var digits [checksumLen]byte
	sum := crc32.ChecksumIEEE([]byte(text))
	for i := checksumLen - 1; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return string(digits[:])
}

// keyring authenticates, and remembers the keys it has met.
type keyring struct {
	store  *store
	prefix string // of the keys that it takes
	other  string // the prefix of the other environment's keys

	known cache[digest, knownKey] // a key that is not here is read when it is used

	// Somebody who guesses keys must not keep the database busy. An address is spent if its
	// requests without a valid key have used up addressQuota. A lookup is suspect if its key is not
	// in memory and its address is spent. Suspect lookups run one at a time.
	suspects atomic.Int64 // how many suspect lookups run or wait now
	// turn holds an element while one runs. It is a channel in place of a mutex, because
	// testing/synctest does not see that a goroutine waits for a mutex.
	turn chan struct{}
}

// knownKey is a key that is remembered; the zero knownKey is none.
type knownKey struct {
	*apiKey
	generation uint64 // what store.generation was before the key was read
}

// maxSuspects is how many suspect lookups may run or wait. While a cluster has no leader, each
// takes up to about 5 s. So the last of four ends after 20 s. It must leave time for the rest of
// its request, whose response has to be sent within 30 s.
const maxSuspects = 4

// errNoLookup means that maxSuspects suspect lookups run or wait already.
var errNoLookup = newError(CodeUnavailable, "the API key cannot be looked up now; try again")

// errInvalidKey is the same for all keys that cannot be used, so that nobody learns why.
var errInvalidKey = newError(CodeInvalidKey, "the API key is not valid")

func newKeyring(s *store, staging bool) *keyring {
	return &keyring{
		store:  s,
		prefix: keyPrefix(staging),
		other:  keyPrefix(!staging),
		known:  cache[digest, knownKey]{max: 1 << 15},
		turn:   make(chan struct{}, 1),
	}
}

// authenticate finds the key that a request carries in its Authorization headers, of which at most
// one is allowed. The error is an *Error missing_key or invalid_key, errNoLookup, or the store's.
// All unusable keys get the same message, except a key of the other environment, which its prefix
// shows anyway. spent reports whether the caller's address is spent, and is asked only if a key is
// not known.
func (k *keyring) authenticate(headers []string, now time.Time, spent func() bool) (
	*apiKey, error) {
	if len(headers) > 1 {
		return nil, errInvalidKey // whatever they hold
	}
	var token string
	if len(headers) == 1 {
		token = bearer(headers[0])
	}
	if token == "" {
		return nil, newError(CodeMissingKey,
			"an API key is required, as Authorization: Bearer API_KEY")
	}
	if strings.HasPrefix(token, k.other) {
		return nil, newError(CodeInvalidKey,
			"this service takes only API keys that begin with %s", k.prefix)
	}
	key, err := k.lookup(secret(token), spent)
	if err != nil {
		return nil, err
	}
	if key == nil || !key.usable(instantOf(now)) {
		return nil, errInvalidKey
	}
	return key, nil
}

// bearer takes the token from an Authorization header (RFC 6750 section 2.1). It is "" when no
// bearer token was sent, even if another scheme was used: RFC 6750 section 3.1 wants that treated
// as no credentials.
func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

// lookup returns the key that a token is, or nil. A key that is not in memory, or may have changed
// since it was read, is read from the database if its checksum is right.
func (k *keyring) lookup(token secret, spent func() bool) (*apiKey, error) {
	d := token.digest()
	known := k.known.get(d)
	if k.fresh(known) {
		return known.apiKey, nil
	}
	if !wellFormed(string(token), k.prefix) {
		return nil, nil
	}
	isKnown := known.apiKey != nil // even if it may have changed since
	isSuspect := !isKnown && spent()
	if isSuspect {
		return k.readInTurn(d)
	}
	return k.read(d)
}

// fresh reports whether a key from memory is there, and as good as the one in the database: the
// store begins a generation whenever others may have changed rows that are cached here.
func (k *keyring) fresh(known knownKey) bool {
	return known.apiKey != nil && known.generation == k.store.generation.Load()
}

// wellFormed reports whether token has the form of a key with the prefix.
func wellFormed(token, prefix string) bool {
	checked := len(prefix) + randomLen // what the checksum is made of
	if len(token) != checked+checksumLen || !strings.HasPrefix(token, prefix) {
		return false
	}
	return checksum(token[:checked]) == token[checked:]
}

// readInTurn reads a key when no other suspect lookup reads one.
func (k *keyring) readInTurn(d digest) (*apiKey, error) {
	suspects := k.suspects.Add(1) // this one included
	defer k.suspects.Add(-1)
	if suspects > maxSuspects {
		return nil, errNoLookup
	}
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	if known := k.known.get(d); k.fresh(known) { // another request with this key was faster
		return known.apiKey, nil
	}
	return k.read(d)
}

// read reads a key from the database, or returns nil. Unknown keys are not remembered, so that
// guessing fills no memory. No context bounds the read, since one would cost a goroutine (see
// engine.read), and each engine has a bound of its own.
func (k *keyring) read(d digest) (*apiKey, error) {
	generation := k.store.generation.Load() // before the query
	key, err := findKey(context.Background(), k.store, d)
	if err != nil {
		return nil, err
	}
	if key == nil {
		k.known.remove(d) // somebody may have deleted its row by hand
		return nil, nil
	}
	const size = 1 // each key counts as 1: known.max is a number of keys, not of bytes
	k.known.put(d, knownKey{apiKey: key, generation: generation}, size)
	return key, nil
}

// newest returns the newest of the remembered keys of each line of rotations, in a map by the id of
// the usage that they share. The operator's page names with it who is busy.
func (k *keyring) newest() map[int64]*apiKey {
	k.known.mu.RLock()
	defer k.known.mu.RUnlock()
	newest := map[int64]*apiKey{}
	for _, entry := range k.known.entries {
		key := entry.value.apiKey
		if other := newest[key.usageID]; other == nil || other.ID < key.ID {
			newest[key.usageID] = key
		}
	}
	return newest
}

// clientNetwork is what a request without a valid key is charged to: the IPv4 address, or the /64
// of the IPv6 address, since a household or a server commonly holds a whole one. Behind a proxy it
// is the rightmost entry of the named header, the one that the proxy itself has written. If no
// header is named, or that entry is missing or no address, the address of the connection counts.
func clientNetwork(r *http.Request, header string) netip.Prefix {
	entries := strings.Join(r.Header.Values(header), ",") // "" if no header is named
	last := entries[strings.LastIndexByte(entries, ',')+1:]
	if network := parseNetwork(strings.TrimSpace(last)); network.IsValid() {
		return network
	}
	return parseNetwork(r.RemoteAddr)
}

// parseNetwork takes an IP address with or without a port, and in brackets or not. It returns the
// zero Prefix for any other text.
func parseNetwork(text string) netip.Prefix {
	var ip netip.Addr // invalid at first
	if addrPort, err := netip.ParseAddrPort(text); err == nil {
		ip = addrPort.Addr()
	} else { // it has no port (which IPv6 addresses have only behind brackets)
		ip, _ = netip.ParseAddr(strings.Trim(text, "[]")) // invalid with an error
	}
	if !ip.IsValid() {
		return netip.Prefix{}
	}
	ip = ip.Unmap()
	network, _ := ip.Prefix(min(ip.BitLen(), 64)) // all 32 bits of IPv4
	return network
}
