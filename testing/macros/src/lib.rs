//! `#[test]` of `satune-testing`.
use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Enters a function in the list of tests; `#[ignore]` and `#[ignore = "reason"]` mean what they always mean. `#[test(slow)]`: of
/// these a run of all tests takes some, see the crate.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let slow = match arguments.to_string().as_str() {
        "" => false,
        "slow" => true,
        _ => return error("a test is slow, or nothing is said of it"),
    };
    let tokens: Vec<TokenTree> = item.into_iter().collect();
    let (mut kept, mut ignored, mut name) = (TokenStream::new(), false, None);
    let mut at = 0;
    while at < tokens.len() {
        if let (TokenTree::Punct(hash), Some(TokenTree::Group(group))) = (&tokens[at], tokens.get(at + 1)) {
            let word = group.stream().into_iter().next().map(|t| t.to_string()).unwrap_or_default();
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket {
                match word.as_str() {
                    "ignore" => {
                        ignored = true;
                        at += 2;
                        continue;
                    }
                    "should_panic" => return error("#[should_panic] is not known here: catch the panic in the test"),
                    _ => {}
                }
            }
        }
        if let (TokenTree::Ident(word), Some(TokenTree::Ident(next))) = (&tokens[at], tokens.get(at + 1)) {
            if word.to_string() == "fn" && name.is_none() {
                name = Some(next.to_string());
            }
        }
        kept.extend([tokens[at].clone()]);
        at += 1;
    }
    let Some(name) = name else { return error("#[test] belongs to a function") };
    let entry = format!(
        "::satune_testing::inventory::submit! {{
            ::satune_testing::Test {{ path: ::core::concat!(::core::module_path!(), \"::{name}\"), run: {name}, ignored: {ignored}, slow: {slow} }}
        }}"
    );
    kept.extend(entry.parse::<TokenStream>().unwrap_or_else(|_| error("the name of a test is no plain identifier")));
    kept
}

fn error(text: &str) -> TokenStream {
    format!("::core::compile_error!({text:?});").parse().unwrap_or_default()
}
