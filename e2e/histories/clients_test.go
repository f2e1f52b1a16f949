package histories

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Who asks for what in a history, and how long.
const (
	clients  = 6
	thinking = 8 * time.Millisecond // the longest pause of a client between two requests
	visible  = time.Second          // by which a service shows an edit
)

var statuses = []string{"available", "pending", "sold"}

// session is the clients of a service, which record what they see.
type session struct {
	*service
	*history
	client  http.Client
	over    atomic.Bool
	names   atomic.Int64 // how many pets were named
	highest atomic.Int64 // the highest id that anybody was told

	mu    sync.Mutex // guards what follows
	sent  []create   // what was sent under an Idempotency-Key
	known []int64    // the ids of pets that somebody has created
}

// work has the clients ask for a time, then lets all edits become visible and lists everything.
func (s *session) work(lasts time.Duration) {
	s.client.Transport = &http.Transport{MaxIdleConnsPerHost: clients}
	var working sync.WaitGroup
	for number := range clients {
		working.Go(func() {
			for !s.over.Load() {
				s.ask(number)
				time.Sleep(rand.N(thinking))
			}
		})
	}
	working.Go(s.edit)
	time.Sleep(lasts)
	s.over.Store(true)
	working.Wait()
}

// ask sends one request, or several for the pages of a list.
func (s *session) ask(client int) {
	switch rand.N(10) {
	case 0, 1, 2:
		s.create(client, create{newPet: s.nameOne()})
	case 3:
		first := create{newPet: s.nameOne()}
		first.key = strconv.FormatInt(first.CategoryID, 10)
		s.mu.Lock()
		s.sent = append(s.sent, first)
		s.mu.Unlock()
		s.create(client, first)
	case 4:
		s.repeat(client)
	case 5:
		s.get(client, get{1 + rand.N(s.highest.Load()+1)})
	case 6: // pages that everybody asks for, and services therefore remember
		s.list(client, list{limit: 3}, 1)
	default:
		near := max(0, s.highest.Load()-rand.Int64N(6))
		in := list{limit: 1 + rand.Int64N(5), after: []int64{0, near}[rand.N(2)]}
		if rand.N(2) == 0 {
			in.status = statuses[rand.N(3)]
		}
		s.list(client, in, 3)
	}
}

func (s *session) nameOne() newPet {
	n := s.names.Add(1)
	return newPet{fmt.Sprint("pet ", n), n, statuses[n%3]}
}

// repeat sends what was sent under an Idempotency-Key before, or something else under it.
func (s *session) repeat(client int) {
	s.mu.Lock()
	if len(s.sent) == 0 {
		s.mu.Unlock()
		return
	}
	again := s.sent[max(0, len(s.sent)-1-rand.N(20))]
	s.mu.Unlock()
	if rand.N(4) == 0 {
		again.newPet = s.nameOne()
	}
	s.create(client, again)
}

// create sends a create. One that is refused did nothing and is not recorded.
func (s *session) create(client int, in create) {
	body, _ := json.Marshal(in.newPet)
	called := s.now()
	response, text, err := s.send("POST", *s.url.Load()+"/pets", body, in.key)
	var out created
	switch {
	case refusedConnection(err):
		return
	case err != nil || response.StatusCode == 503 && strings.Contains(text, "unknown"):
		out.unknown = true
	case response.StatusCode == 503:
		return
	case response.StatusCode == 422:
		out.reused = true
	case response.StatusCode != 201 || json.Unmarshal([]byte(text), &out.pet) != nil:
		s.t.Errorf("a create gets %d %s", response.StatusCode, text)
		return
	default:
		out.replayed = response.Header.Get("Idempotency-Replayed") == "true"
		s.saw(out.ID)
		s.mu.Lock()
		s.known = append(s.known, out.ID)
		s.mu.Unlock()
	}
	s.add(client, in, called, out)
}

func (s *session) saw(id int64) {
	for highest := s.highest.Load(); id > highest; highest = s.highest.Load() {
		s.highest.CompareAndSwap(highest, id)
	}
}

func (s *session) get(client int, in get) {
	called := s.now()
	response, text, err := s.send("GET", fmt.Sprint(*s.url.Load(), "/pets/", in.id), nil, "")
	var found pet
	switch {
	case err != nil:
	case response.StatusCode == 404:
		s.add(client, in, called, page{})
	case response.StatusCode != 200 || json.Unmarshal([]byte(text), &found) != nil:
		s.t.Errorf("GET /pets/%d gets %d %s", in.id, response.StatusCode, text)
	default:
		s.add(client, in, called, page{pets: []pet{found}})
	}
}

// list asks for a page, and then for those to which its Links lead, up to a number of pages.
func (s *session) list(client int, in list, pages int) {
	for next := &in; next != nil && pages > 0; pages-- {
		next = s.listPage(client, *next)
	}
}

// listPage asks for a page and returns what its Link asks for, or nil if there is none.
func (s *session) listPage(client int, in list) (next *list) {
	query := url.Values{"limit": {strconv.FormatInt(in.limit, 10)}}
	if in.status != "" {
		query.Set("status", in.status)
	}
	if in.after > 0 {
		query.Set("after", strconv.FormatInt(in.after, 10))
	}
	called := s.now()
	response, text, err := s.send("GET", *s.url.Load()+"/pets?"+query.Encode(), nil, "")
	if err != nil {
		return nil
	}
	var out page
	if response.StatusCode != 200 || json.Unmarshal([]byte(text), &out.pets) != nil {
		s.t.Errorf("GET /pets?%s gets %d %s", query.Encode(), response.StatusCode, text)
		return nil
	}
	link := response.Header.Get("Link")
	out.more = link != ""
	s.add(client, in, called, out)
	if !out.more {
		return nil
	}
	in.after = out.pets[len(out.pets)-1].ID
	s.saw(in.after)
	query.Set("after", strconv.FormatInt(in.after, 10))
	linked, rest, _ := strings.Cut(strings.TrimPrefix(link, "</v1/pets?"), ">")
	values, err := url.ParseQuery(linked)
	if err != nil || values.Encode() != query.Encode() || rest != `; rel="next"` {
		s.t.Errorf("the Link after GET /pets?%s is %s", query.Encode(), link)
		return nil
	}
	return &in
}

// send sends a request once: net/http repeats those with an Idempotency-Key by itself, unless it
// cannot read their bodies a second time.
func (s *session) send(method, target string, body []byte, key string) (
	response *http.Response, text string, err error) {
	request, err := http.NewRequest(method, target, io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Authorization", "Bearer "+s.key)
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err = s.client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response, string(content), err
}

// refusedConnection reports whether a request surely did not reach the service.
func refusedConnection(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// edit changes and deletes pets by the operator's commands, one after the other: the first ones,
// which are on pages that services remember, and those at the end.
func (s *session) edit() {
	latest := map[int64]*newPet{} // what the edits have made of pets
	for number := 1; !s.over.Load(); number++ {
		time.Sleep(rand.N(300 * time.Millisecond))
		s.mu.Lock()
		known := s.known
		s.mu.Unlock()
		if len(known) == 0 {
			continue
		}
		id := known[len(known)-1]
		if rand.N(2) == 0 {
			id = known[rand.N(min(6, len(known)))]
		}
		if becomes, ok := latest[id]; !ok || becomes != nil { // it is not deleted yet
			s.editOne(number, id, latest)
		}
	}
}

// editOne edits a pet. What the command is not told to change stays as it was, so it changes all.
func (s *session) editOne(number int, id int64, latest map[int64]*newPet) {
	args, in := []string{strconv.FormatInt(id, 10)}, edit{number: number, id: id}
	action := "delete"
	if rand.N(4) > 0 {
		becomes := s.nameOne()
		action, in.becomes = "set", &becomes
		args = append([]string{"-name", becomes.Name, "-category",
			strconv.FormatInt(becomes.CategoryID, 10), "-status", becomes.Status}, args...)
	}
	called := s.now()
	if _, err := s.command("pet", action, args...); err != nil {
		s.t.Errorf("an edit fails: %v", err)
		return
	}
	latest[id] = in.becomes
	shows := s.now() + int64(visible)
	s.addAt(clients, in, called, nil, called)
	s.addAt(clients, settle{number, id}, shows, nil, shows)
}

// listAll lists everything, so that the history tells what became of all creates.
func (s *session) listAll() {
	time.Sleep(visible + time.Second/10)
	s.list(clients+1, list{limit: 100}, math.MaxInt)
}
