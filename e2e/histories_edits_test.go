package e2e

// Proven here, with porcupine: imports, and keys that are revoked, are part of the histories. An
// import's pets come under the ids that it tells. A key is let in everywhere until a service has
// noticed that it is revoked, and never again after that; this takes a second at most or, around an
// outage of the leader, until a second after its end.

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"petstore/e2e/histories/pets"
)

// run runs a command of the operator, and returns what it prints.
func (r *recording) run(stdin string, args ...string) (stdout, stderr string, err error) {
	cmd := r.operator.program(slices.Insert(args, 2, "-db", r.operator.db)...)
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &log
	if err = cmd.Run(); err != nil {
		r.Logf("%s fails, with an outcome that is not known: %s", args[:2], log.String())
	}
	return strings.TrimSpace(out.String()), log.String(), err
}

// importSome imports some pets, under ids that follow one another.
func (r *recording) importSome() {
	var lines strings.Builder
	var all []pets.NewPet
	for range 1 + rand.N(4) {
		p := r.nameOne()
		line, _ := json.Marshal(p)
		lines.Write(append(line, '\n'))
		all = append(all, p)
	}
	called := r.Now()
	_, log, err := r.run(lines.String(), "pet", "import", "-")
	first, notTold := strconv.ParseInt(field(log, "ids"), 10, 64)
	known := err == nil && notTold == nil // an import that tried twice says "unknown"
	for i, p := range all {
		out := pets.Created{Unknown: true}
		if known {
			out = pets.Created{Pet: pets.Pet{ID: first + int64(i), NewPet: p}}
			r.saw(out.ID)
			r.mu.Lock()
			r.known = append(r.known, out.Pet)
			r.mu.Unlock()
		}
		r.AddLate(recorders+1, pets.Create{NewPet: p}, called, out, known)
	}
}

// useKeys makes a key after the other, has a client use each at every service, and revokes it.
func (r *recording) useKeys() {
	for number := 0; !r.over.Load(); number++ {
		key, log, err := r.run("", "key", "create", "-plan", "business")
		if err != nil {
			continue
		}
		var isOld atomic.Bool
		var using sync.WaitGroup
		for service := range r.services {
			using.Go(func() { r.useKey(pets.Use{Service: service, Key: number}, key, &isOld) })
		}
		time.Sleep(rand.N(pets.Visible))
		called := r.keys.Now()
		_, _, err = r.run("", "key", "revoke", strings.TrimSuffix(field(log, "id"), ","))
		for service := range r.services {
			revoked := pets.Use{Service: service, Key: number}
			r.keys.AddLate(recorders, revoked, called, nil, err == nil)
		}
		time.Sleep(2 * pets.Visible)
		isOld.Store(true)
		using.Wait()
	}
}

// useKey uses a key until it is old, or was refused twice: the address may not be spent.
func (r *recording) useKey(at pets.Use, key string, isOld *atomic.Bool) {
	for refused := 0; refused < 2 && !isOld.Load(); time.Sleep(rand.N(2 * thinking)) {
		called := r.keys.Now()
		got, err := call(r.urls[at.Service], key, "GET", "/pets?limit=1", "", "")
		if unanswered(got, err) {
			continue
		}
		isRefused := got.status == http.StatusUnauthorized
		if isRefused {
			refused++
		}
		r.keys.Add(at.Service, at, called, !isRefused)
	}
}

// outage lets something happen while a service that looks for a leader may go by what it remembers.
func (r *recording) outage(happens func()) {
	from, keysFrom := r.Now(), r.keys.Now()
	happens()
	r.AddOutage(from)
	r.keys.AddOutage(keysFrom)
}
