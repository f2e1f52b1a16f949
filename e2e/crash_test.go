package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestAKillLosesNothingThatWasAnswered kills the service among 64 clients that
// create animals, and looks for every one whose 201 arrived: it must be there,
// once, under the id that the answer gave.
func TestAKillLosesNothingThatWasAnswered(t *testing.T) {
	s := start(t)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 10 * time.Second}
	for round := range 3 {
		var mu sync.Mutex
		answered := map[string]int64{} // name: id
		enough := make(chan struct{})
		var clients sync.WaitGroup
		for c := range 64 {
			clients.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("round %d, client %d, animal %d", round, c, i)
					id, err := create(client, s, name)
					if err != nil {
						return // the service is gone
					}
					mu.Lock()
					if answered[name] = id; len(answered) == 500 {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		ended := make(chan struct{})
		go func() {
			clients.Wait()
			close(ended)
		}()
		select {
		case <-enough:
		case <-ended:
			t.Fatalf("the clients ended before they were answered often enough:\n%s", s.log)
		}
		if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = s.cmd.Wait() // it was killed
		<-ended
		s.run()
		stored := everything(t, client, s)
		for name, id := range answered {
			if ids := stored[name]; len(ids) != 1 || ids[0] != id {
				t.Errorf("%s was answered with id %d and is stored as %v", name, id, ids)
			}
		}
		t.Logf("round %d: %d answered, %d stored in all", round, len(answered), len(stored))
	}
}

// create adds an animal and returns its id, or the error of a request that was not answered.
func create(client *http.Client, s *server, name string) (id int64, err error) {
	r, err := http.NewRequest("POST", s.url+"/pets", strings.NewReader(fmt.Sprintf(`{"name":%q,"categoryId":1}`, name)))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", s.bearer())
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var pet struct{ ID int64 }
	if err := json.NewDecoder(response.Body).Decode(&pet); err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusCreated {
		return 0, fmt.Errorf("status %d", response.StatusCode)
	}
	return pet.ID, nil
}

// everything pages through all animals: the ids under each name.
func everything(t *testing.T, client *http.Client, s *server) map[string][]int64 {
	t.Helper()
	stored := map[string][]int64{}
	after := int64(0)
	for {
		r, err := http.NewRequest("GET", fmt.Sprintf("%s/pets?limit=100&after=%d", s.url, after), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", s.bearer())
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var pets []struct {
			ID   int64
			Name string
		}
		err = json.NewDecoder(response.Body).Decode(&pets)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %v", response.StatusCode, err)
		}
		if len(pets) == 0 {
			return stored
		}
		for _, p := range pets {
			stored[p.Name] = append(stored[p.Name], p.ID)
			after = p.ID
		}
	}
}
