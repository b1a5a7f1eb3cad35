//! Seeds of the reader of rules: every keyword, and what splits and joins lines.

use super::Add;

pub(super) fn rules(add: Add<'_>) {
    let http = "flow:established,to_server; http.method; content:\"POST\"; http.uri; content:\"/a|2e|php\"; \
                nocase; fast_pattern:1,3; content:!\"x\"; distance:-1; within:5; pcre:\"/^\\/a$/Ri\"; bsize:>5; \
                http.request_header; to_lowercase; xor:\"0aff\"; content:\"b\"; startswith; endswith;";
    let older = "content:\"GET\"; http_method; offset:1; depth:5; uricontent:\"u\"; content:\"|0d 0A|\"; http_header; \
                 isdataat:!1,relative; pcre:\"/(a)/Uims,flow:x\"; urilen:5<>9,raw; dsize:!9;";
    let tls = "tls.sni; dotprefix; content:\".a.example\"; endswith; tls.cert_subject; content:\"CN=a\"; \
               tls.version:!1.3; tls.issuerdn:!\"CN=b\"; ja3.hash; dataset:isset,a,type md5,load a.lst;";
    let numbers = "content:\"a\"; byte_extract:2,0,len,relative,multiplier 2; content:\"b\"; distance:len; \
                   byte_test:4,!=,0x10,-1,relative,little,bitmask 0xf0; byte_jump:2,len,string,dec,from_end,post_offset -8;";
    let rest = "flowbits:isset,a|b; xbits:set,c,track ip_src,expire 9; noalert; tag:host,5,packets,dst; \
                threshold:type both,track by_rule,count 2,seconds 3; http2.settings:SETTINGS_ENABLE_PUSH=0; \
                detection_filter:track by_dst,count 2,seconds 3; http2.frametype:GOAWAY; http2.errorcode:7; \
                reference:url,a.example; classtype:misc; priority:2; metadata:a b,c d; target:src_ip; gid:2; rev:3;";
    let rule =
        |header: &str, options: &str| format!("{header} (msg:\"a\\;\\\"b\"; {options} sid:1;)\n");
    let any = "alert http any any -> any any";
    for (name, text) in [
        ("http", rule(any, http)),
        ("older", rule("drop tcp $HOME_NET any <> !$EXTERNAL_NET $HTTP_PORTS", older)),
        (
            "tls",
            rule(
                "rejectboth tls [10.0.0.0/8,!10.1.0.0/255.255.0.0] any -> [::1/64,1.2.3.4-1.2.3.9] [80:90,!85,1024:]",
                tls,
            ),
        ),
        ("numbers", rule("alert tcp-pkt any any -> any any", numbers)),
        ("rest", rule(any, rest)),
        (
            "file",
            [
                &rule(any, "rev:1;"),
                "# ",
                &rule(any, "rev:2;"),
                &rule(any, "rev:2;"),
                "\n# a \\\n b\nalert ip any any \\\n -> any any \\\n(sid:2;)\n",
            ]
            .concat(),
        ),
        (
            "faulty",
            [
                rule("alert udp any any -> any any", ""),
                rule(any, "lua:a;"),
                rule("alert tcp $X any -> any any", ""),
                rule(any, "content:\"|4|\";"),
                "alert tcp [[any any -> any any (".to_owned(),
            ]
            .concat(),
        ),
    ] {
        add("rules", name, text.into_bytes());
    }
}
