#!/bin/sh
# Makes what the machines of a cluster need of each other: sh cluster.sh ADDRESS...
# The folder "cluster" gets an authority for certificates, passwords, and for each
# address a folder with the files of that machine. What is there already stays.
set -eu
umask 077
deploy=$(cd "$(dirname "$0")" && pwd)
mkdir -p cluster
cd cluster

certificate() { # What openssl says matters only when it fails.
	said=$(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc "$@" 2>&1) || {
		echo "$said" >&2
		exit 1
	}
}

if [ ! -f ca.crt ]; then
	certificate -days 3650 -subj "/CN=pet store cluster" -keyout ca.key -out ca.crt.new
	mv ca.crt.new ca.crt
fi
for user in petstore node admin; do
	[ -s "$user.password" ] || openssl rand -hex 20 >"$user.password"
done

for address; do
	[ ! -f "$address/node.crt" ] || continue # which is made last
	mkdir -p "$address"
	cp ca.crt "$address"
	(cd "$deploy" && cp haproxy.cfg rqlite.service petstore.service petstore-* "$OLDPWD/$address")
	for file in rqlite.env rqlite-auth.json rqlite-admin.curl petstore-cluster.env; do
		# Any user can read the command line of sed, but not what it is given to read.
		sed -f - "$deploy/$file" >"$address/$file" <<-END
			s/=ADDRESS/=$address/
			s/PETSTORE-PASSWORD/$(cat petstore.password)/g
			s/NODE-PASSWORD/$(cat node.password)/
			s/ADMIN-PASSWORD/$(cat admin.password)/
		END
	done
	certificate -CA ca.crt -CAkey ca.key -days 825 -subj "/CN=$address" \
		-extensions usr_cert -addext "subjectAltName=IP:$address" \
		-keyout "$address/node.key" -out "$address/node.crt.new"
	mv "$address/node.crt.new" "$address/node.crt"
done
