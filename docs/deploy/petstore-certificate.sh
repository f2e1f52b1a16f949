#!/bin/sh
# Copy to /etc/letsencrypt/renewal-hooks/deploy/, which certbot runs after each renewal.
set -e
umask 077 # the private key is HAProxy's and nobody else's
cd /etc/letsencrypt/live/pets.example.com
cat fullchain.pem privkey.pem >/etc/haproxy/pets.example.com.pem.new
mv /etc/haproxy/pets.example.com.pem.new /etc/haproxy/pets.example.com.pem
systemctl try-reload-or-restart haproxy
