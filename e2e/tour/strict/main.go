// Exercise strict of docs/tour-limit.md: bodies of strangers, read as most tutorials do.
package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

type pet struct {
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

// decode reads the body of a request. name and categoryId are required.
func decode(body string) (p pet, err error) {
	err = json.NewDecoder(strings.NewReader(body)).Decode(&p)
	return p, err
}

// bodies are mistakes that real clients make.
var bodies = []string{
	`{"name":"Rex","categoryId":1,"staus":"sold"}`,
	`{"name":"Rex"}`,
	`{"name":"Rex","categoryId":1}{"name":"Max"}`,
	`{"NAME":"Rex","CategoryID":1}`,
	`{"name":"Rex","name":"Max","categoryId":1}`,
	`{"name":"\ud83d","categoryId":1}`,
}

func main() {
	for _, body := range bodies {
		p, err := decode(body)
		fmt.Printf("%-46s %q %d %q %v\n", body, p.Name, p.CategoryID, p.Status, err)
	}
}
