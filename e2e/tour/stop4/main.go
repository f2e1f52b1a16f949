// Stop4 shows what stop 4 of docs/tour.md warns of: bodies of strangers that encoding/json accepts by default.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// newPet is what a client may send.
type newPet struct {
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// naive reads a body as most tutorials do.
func naive(body string) (pet newPet, err error) {
	err = json.NewDecoder(strings.NewReader(body)).Decode(&pet)
	return pet, err
}

// bodies are mistakes that real clients make, and one that an attacker makes.
var bodies = []string{
	`{"name":"Rex","categoryId":1,"staus":"sold"}`,
	`{"NAME":"Rex","CategoryID":1}`,
	`{"name":"Rex","name":"Max","categoryId":1}`,
	`{"name":"Rex","categoryId":null}`,
	`{"name":"Rex"}`,
	`{"name":"Rex","categoryId":1}{"name":"Max"}`,
	`{"name":"\ud83d","categoryId":1}`,
	"{\"name\":\"R\xe9x\",\"categoryId\":1}",
}

func show(out io.Writer) {
	for _, body := range bodies {
		pet, err := naive(body)
		_, _ = fmt.Fprintf(out, "%-46s %q, %d, %q, error: %v\n", strings.ToValidUTF8(body, `\xe9`), pet.Name, pet.CategoryID, pet.Status, err)
	}
	var number struct{ ID any }
	_ = json.Unmarshal([]byte(`{"id":9007199254740993}`), &number)
	_, _ = fmt.Fprintf(out, "%-46s %.0f\n", `{"id":9007199254740993} into an any`, number.ID)
}

func main() { show(os.Stdout) }
