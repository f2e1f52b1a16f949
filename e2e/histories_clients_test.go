package e2e

// How clients and an operator record what they are told.

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/e2e/histories/pets"
)

const (
	recorders = 6                     // clients of a history
	thinking  = 10 * time.Millisecond // the longest pause of a client between two requests
)

// recording is a store whose clients record what they see.
type recording struct {
	*testing.T
	*pets.History
	keys     *pets.History // of the keys' uses
	operator *server       // whose database the operator's commands change
	urls     []string      // of the services, and then of balancers
	services int           // how many they are
	callers  []string      // keys

	over    atomic.Bool
	names   atomic.Int64 // how many pets were named
	highest atomic.Int64 // the highest id that anybody was told
	edits   atomic.Int64 // commands that succeeded

	mu    sync.Mutex    // guards what follows
	sent  []pets.Create // under an Idempotency-Key
	known []pets.Pet    // as clients have created them

	last   sync.Map     // the last 200 of a service, by what was asked for: an *answer
	unread atomic.Int64 // 304s
}

// newRecording begins a history of services, which may stand behind balancers.
func newRecording(t *testing.T, services []*server, callers []string,
	balancers ...string) *recording {
	r := &recording{
		T: t, History: pets.New(), keys: pets.New(), operator: services[0], callers: callers,
	}
	for _, s := range services {
		r.urls = append(r.urls, s.url)
	}
	r.services = len(services)
	r.urls = append(r.urls, balancers...)
	return r
}

// while has clients ask and an operator edit pets for as long as something happens, and then lists
// everything, so that the history tells what became of all creates.
func (r *recording) while(happens func()) {
	var working sync.WaitGroup
	for client := range recorders {
		working.Go(func() {
			for !r.over.Load() {
				r.ask(client)
				time.Sleep(rand.N(thinking))
			}
		})
	}
	working.Go(r.edit)
	working.Go(r.useKeys)
	happens()
	r.over.Store(true)
	working.Wait()
	for service := range r.services {
		r.list(recorders, service, pets.List{Limit: 100}, math.MaxInt)
	}
}

// ask sends one request, or several for the pages of a list.
func (r *recording) ask(client int) {
	target := rand.N(len(r.urls))
	switch rand.N(10) {
	case 0, 1, 2:
		r.create(client, target, pets.Create{NewPet: r.nameOne(), Key: r.someKey("")})
	case 3:
		first := pets.Create{NewPet: r.nameOne()}
		first.Key = r.someKey(strconv.FormatInt(first.CategoryID, 10))
		r.mu.Lock()
		r.sent = append(r.sent, first)
		r.mu.Unlock()
		r.create(client, target, first)
	case 4:
		r.repeat(client, target)
	case 5:
		r.get(client, target, 1+rand.N(r.highest.Load()+1))
	case 6: // pages that everybody asks for, and services therefore remember
		r.list(client, target, pets.List{Limit: 3}, 1)
	default:
		in := pets.List{Limit: 1 + rand.N(5)}
		if rand.N(2) == 0 {
			in.After = max(0, r.highest.Load()-rand.Int64N(6))
		}
		if rand.N(2) == 0 {
			in.Status = petStatuses[rand.N(3)]
		}
		r.list(client, target, in, 3)
	}
}

var petStatuses = []string{"available", "pending", "sold"}

// nameOne returns a pet whose name nobody had before.
func (r *recording) nameOne() pets.NewPet {
	n := r.names.Add(1)
	return pets.NewPet{Name: fmt.Sprint("pet ", n), CategoryID: n, Status: petStatuses[n%3]}
}

func (r *recording) someKey(idempotency string) pets.Key {
	return pets.Key{Caller: rand.N(len(r.callers)), Idempotency: idempotency}
}

// repeat sends what was sent under an Idempotency-Key before, or something else under it, or the
// same for another caller.
func (r *recording) repeat(client, target int) {
	r.mu.Lock()
	if len(r.sent) == 0 {
		r.mu.Unlock()
		return
	}
	again := r.sent[max(0, len(r.sent)-1-rand.N(20))]
	r.mu.Unlock()
	if rand.N(4) == 0 {
		again.NewPet = r.nameOne()
		again.Caller = rand.N(len(r.callers))
	}
	r.create(client, target, again)
}

// create sends a create. One that surely did nothing is not recorded.
func (r *recording) create(client, target int, in pets.Create) {
	body, err := json.Marshal(in.NewPet)
	noError(r.T, err)
	called := r.Now()
	caller := r.callers[in.Caller]
	got, err := call(r.urls[target], caller, "POST", "/pets", string(body), in.Idempotency)
	var out pets.Created
	switch {
	case refusedConnection(err) || refusesWithoutTrying(got, err):
		return
	case unanswered(got, err):
		out.Unknown = true
	case got.status == http.StatusUnprocessableEntity:
		out.Reused = true
	case got.status != http.StatusCreated:
		r.Errorf("a create gets %d %s", got.status, got.body)
		return
	default:
		out.Pet = decode[pets.Pet](r.T, got.body)
		out.Replayed = got.header.Get("Idempotency-Replayed") == "true"
		r.saw(out.ID)
		r.mu.Lock()
		r.known = append(r.known, out.Pet)
		r.mu.Unlock()
	}
	r.Add(client, in, called, out)
}

// refusedConnection reports whether a request surely did not reach the service.
func refusedConnection(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// refusesWithoutTrying reports whether a service says that it has stored nothing.
func refusesWithoutTrying(got *answer, err error) bool {
	return err == nil && got.code == "unavailable" && !strings.Contains(got.body, "unknown") &&
		got.header.Get("X-Request-Id") != "" // else it is a balancer that says so
}

func (r *recording) saw(id int64) {
	for highest := r.highest.Load(); id > highest; highest = r.highest.Load() {
		r.highest.CompareAndSwap(highest, id)
	}
}

// read sends a request for pets, at times on condition that they have changed: a 304 counts as the
// response that it stands for. It returns which service has responded, and nil if none has.
func (r *recording) read(target int, path string) (got *answer, service int) {
	etag := ""
	last, _ := r.last.Load(path)
	if last != nil && rand.N(2) == 0 {
		etag = last.(*answer).header.Get("ETag")
	}
	caller := r.callers[rand.N(len(r.callers))]
	got, err := call(r.urls[target], caller, "GET", path, "", "", "If-None-Match:"+etag)
	if unanswered(got, err) {
		return nil, 0
	}
	switch got.status {
	case http.StatusOK:
		r.last.Store(path, got)
	case http.StatusNotModified:
		r.unread.Add(1)
		stands := *last.(*answer)
		stands.header = maps.Clone(stands.header)
		stands.header.Set(answeredBy, got.header.Get(answeredBy))
		got = &stands
	}
	if target < r.services {
		return got, target
	}
	service, err = strconv.Atoi(strings.TrimPrefix(got.header.Get(answeredBy), "service"))
	if err != nil {
		r.Errorf("GET %s of a balancer does not tell who has responded: %v", path, got.header)
		return nil, 0
	}
	return got, service
}

func (r *recording) get(client, target int, id int64) {
	called := r.Now()
	got, service := r.read(target, fmt.Sprint("/pets/", id))
	if got == nil {
		return
	}
	var out pets.Page
	switch got.status {
	case http.StatusOK:
		out.Pets = []pets.Pet{decode[pets.Pet](r.T, got.body)}
	case http.StatusNotFound:
	default:
		r.Errorf("GET /pets/%d gets %d %s", id, got.status, got.body)
		return
	}
	r.Add(client, pets.Get{Service: service, ID: id}, called, out)
}

// list asks for a page, and then for those to which its Links lead, up to a number of pages.
func (r *recording) list(client, target int, in pets.List, pages int) {
	for next := &in; next != nil && pages > 0; pages-- {
		next = r.listPage(client, target, *next)
	}
}

// listPage asks for a page and returns what its Link asks for, or nil if there is none.
func (r *recording) listPage(client, target int, in pets.List) (next *pets.List) {
	query := url.Values{"limit": {strconv.Itoa(in.Limit)}}
	if in.Status != "" {
		query.Set("status", in.Status)
	}
	if in.After > 0 {
		query.Set("after", strconv.FormatInt(in.After, 10))
	}
	called := r.Now()
	got, service := r.read(target, "/pets?"+query.Encode())
	if got == nil {
		return nil
	}
	if got.status != http.StatusOK {
		r.Errorf("GET /pets?%s gets %d %s", query.Encode(), got.status, got.body)
		return nil
	}
	link := got.header.Get("Link")
	out := pets.Page{Pets: decode[[]pets.Pet](r.T, got.body), More: link != ""}
	in.Service = service
	r.Add(client, in, called, out)
	if !out.More {
		return nil
	}
	in.After = out.Pets[len(out.Pets)-1].ID
	r.saw(in.After)
	query.Set("after", strconv.FormatInt(in.After, 10))
	linked, rest, _ := strings.Cut(strings.TrimPrefix(link, "</v1/pets?"), ">")
	values, err := url.ParseQuery(linked)
	if err != nil || values.Encode() != query.Encode() || rest != `; rel="next"` {
		r.Errorf("the Link after GET /pets?%s is %s", query.Encode(), link)
		return nil
	}
	return &in
}

// edit changes and deletes pets by the operator's commands, one after the other: the first ones,
// which are on pages that services remember, and those at the end.
func (r *recording) edit() {
	latest := map[int64]*pets.NewPet{} // what the edits have made of pets
	for !r.over.Load() {
		time.Sleep(rand.N(300 * time.Millisecond))
		if rand.N(5) == 0 {
			r.importSome()
		}
		r.mu.Lock()
		known := r.known
		r.mu.Unlock()
		if len(known) == 0 {
			continue
		}
		p := known[len(known)-1]
		if rand.N(2) == 0 {
			p = known[rand.N(min(6, len(known)))]
		}
		was, edited := latest[p.ID]
		if !edited {
			was = &p.NewPet
		}
		if was != nil { // it is not deleted
			latest[p.ID] = r.editOne(p.ID, *was)
		}
	}
}

// editOne edits a pet and returns what became of it: nil if nobody may edit it any more. What the
// command is not told to change stays as it was, so it changes all.
func (r *recording) editOne(id int64, was pets.NewPet) (becomes *pets.NewPet) {
	args := []string{"pet", "delete", strconv.FormatInt(id, 10)}
	if rand.N(4) > 0 {
		p := r.nameOne()
		becomes = &p
		args = []string{"pet", "set", "-name", p.Name, "-category",
			strconv.FormatInt(p.CategoryID, 10), "-status", p.Status, strconv.FormatInt(id, 10)}
	}
	called := r.Now()
	_, _, err := r.run("", args...)
	known := err == nil
	if known {
		r.edits.Add(1)
	}
	for service := range r.services {
		in := pets.Edit{Service: service, ID: id, Was: was, Becomes: becomes}
		r.AddLate(recorders+1, in, called, nil, known)
	}
	if !known {
		return nil
	}
	return becomes
}
