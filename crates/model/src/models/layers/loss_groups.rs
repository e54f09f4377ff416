//! Losses that train only some variables: `{sigmoid_cross_entropy: , variables: 'generator/*'}`.
//!
//! Losses with the same `variables` form a group, whose sum trains them. Losses without `variables` train the variables
//! that no other names. Each trainable variable is in one group.

use super::wiring::at;
use super::{Config, Loss};
use crate::document::{NodeError, Step, nearest};
use bf16scope_passes::name_matches;

/// The losses of a group, by index, and its variables.
pub(super) struct Group {
    pub losses: Vec<usize>,
    pub variables: Vec<String>,
    /// Whether its losses name variables.
    pub is_named: bool,
}

/// The groups of a network whose trainable variables have these names; empty if no loss names any.
///
/// # Errors
/// A pattern that matches no variable; a variable of two groups, or of none; a loss without variables.
pub(super) fn groups(config: &Config, names: &[String]) -> Result<Vec<Group>, NodeError> {
    if config.loss.iter().all(|loss| loss.options.variables.is_empty()) {
        return Ok(Vec::new());
    }
    let mut groups: Vec<Group> = Vec::new();
    for (number, loss) in config.loss.iter().enumerate() {
        let patterns = &loss.options.variables;
        let is_same = |group: &&mut Group| config.loss[group.losses[0]].options.variables == *patterns;
        match groups.iter_mut().find(is_same) {
            Some(group) => group.losses.push(number),
            None => groups.push(Group {
                losses: vec![number],
                variables: matched(number, loss, names)?,
                is_named: !patterns.is_empty(),
            }),
        }
    }
    for (number, group) in groups.iter().enumerate() {
        for other in &groups[..number] {
            if let Some(both) = group.variables.iter().find(|name| other.variables.contains(name)) {
                return Err(twice(config, both, other.losses[0], group.losses[0]));
            }
        }
    }
    let is_trained = |name: &&String| groups.iter().any(|group| group.variables.contains(name));
    let rest: Vec<String> = names.iter().filter(|name| !is_trained(name)).cloned().collect();
    match (groups.iter_mut().find(|group| !group.is_named), rest.first()) {
        (Some(group), Some(_)) => group.variables = rest,
        (Some(group), None) => {
            let number = group.losses[0];
            let message =
                format!("loss `{}` trains no variable: other losses name all of them", called(config, number));
            let help = "add `variables` to it, or leave a pattern out of the others";
            return Err(NodeError::new(at("loss", number), message).with_help(help));
        }
        (None, Some(name)) => {
            let message = format!("no loss trains `{name}`: {}", n_others(rest.len()));
            let help = format!(
                "add '{}' to the `variables` of a loss, or a loss without `variables`, which trains the rest",
                layer_pattern(name)
            );
            return Err(NodeError::new(vec![Step::Key("loss".to_string())], message).with_help(help));
        }
        (None, None) => {}
    }
    Ok(groups)
}

fn n_others(n: usize) -> String {
    match n {
        1 => "the `variables` of each loss leave it out".to_string(),
        n => format!("the `variables` of each loss leave it and {} more out", n - 1),
    }
}

/// The names that a loss's patterns match.
fn matched(number: usize, loss: &Loss, names: &[String]) -> Result<Vec<String>, NodeError> {
    let patterns = &loss.options.variables;
    for pattern in patterns {
        if !names.iter().any(|name| name_matches(pattern, name)) {
            let message = format!("`{pattern}` is the name of no variable that trains");
            let help = match nearest(&pattern.replace('*', ""), names) {
                _ if names.iter().any(|name| name.starts_with(&format!("{pattern}/"))) => {
                    format!("write '{pattern}/*', all of a layer or block")
                }
                Some(name) => format!("did you mean `{name}`? `*` is any text"),
                None => format!("`*` is any text; there are {}", layers_of(names)),
            };
            return Err(NodeError::new(way(number, loss), message).with_help(help));
        }
    }
    Ok(names.iter().filter(|name| patterns.iter().any(|pattern| name_matches(pattern, name))).cloned().collect())
}

fn twice(config: &Config, name: &str, first: usize, second: usize) -> NodeError {
    let names = [first, second].map(|number| called(config, number));
    let message = format!("losses `{}` and `{}` both train `{name}`, by different `variables`", names[0], names[1]);
    let help = "write the same `variables` in both, whose sum then trains them, or patterns that share no variable";
    NodeError::new(way(second, &config.loss[second]), message).with_help(help)
}

fn way(number: usize, loss: &Loss) -> Vec<Step> {
    [at("loss", number), vec![loss.name().into(), "variables".into()]].concat()
}

/// A loss's name, or its kind's.
pub(super) fn called(config: &Config, number: usize) -> &str {
    let loss = &config.loss[number];
    loss.options.name.as_deref().unwrap_or(loss.name())
}

/// The pattern of the outermost layer that a variable belongs to.
fn layer_pattern(name: &str) -> String {
    name.split_once('/').map_or(name.to_string(), |(layer, _)| format!("{layer}/*"))
}

/// Patterns of the outermost layers, the first of them.
fn layers_of(names: &[String]) -> String {
    const N_SHOWN: usize = 8;
    let mut layers: Vec<String> = names.iter().map(|name| layer_pattern(name)).collect();
    layers.dedup();
    let more = if layers.len() > N_SHOWN { ", …" } else { "" };
    layers.truncate(N_SHOWN);
    format!("{}{more}", layers.join(", "))
}
